//! Shows the main job for real.
fn main() {}
