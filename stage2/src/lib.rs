//! An empty library, because only a package with one can be a dependency. The program is `main.rs`, which `exeat-sandbox` compiles
//! and embeds.
