//! Measures what exeat costs.
fn main() {}
