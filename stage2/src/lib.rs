//! Nothing: a package must have a library for another one to depend on it. The program is `main.rs`, which `exeat-sandbox` compiles and
//! embeds.
