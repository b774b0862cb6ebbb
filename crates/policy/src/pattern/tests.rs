use crate::grammar::{Allowances, RuleSpec};
use crate::rule::{Action, Pattern};

fn check(pattern: &str, name: &str, expect: bool) {
    let allowances = Allowances { any: true, shared_suffix: true };
    let Pattern::Name(pattern) = RuleSpec::parse(pattern, Action::Allow, allowances).unwrap().pattern else {
        panic!("{pattern} is a net");
    };
    assert_eq!(pattern.matches(&name.parse().unwrap()), expect, "{pattern} and {name}");
}

macro_rules! allows {
    ($test:ident, $pattern:literal, $name:literal) => {
        #[test]
        fn $test() {
            check($pattern, $name, true);
        }
    };
}

macro_rules! refuses {
    ($test:ident, $pattern:literal, $name:literal) => {
        #[test]
        fn $test() {
            check($pattern, $name, false);
        }
    };
}

allows!(exact, "example.com", "example.com");
allows!(exact_case_of_the_rule, "EXAMPLE.com", "example.com");
allows!(h02_exact_case_of_the_name, "example.com", "eXaMpLe.COM");
allows!(h02_exact_trailing_dot_of_the_name, "example.com", "example.com.");
allows!(exact_trailing_dot_of_the_rule, "example.com.", "example.com");
allows!(exact_single_label, "localhost", "localhost");
refuses!(h01_exact_not_a_prefix, "example.com", "example.com.evil.test");
refuses!(h01_exact_not_a_suffix, "example.com", "notexample.com");
refuses!(exact_not_below, "example.com", "www.example.com");
refuses!(exact_not_its_parent, "www.example.com", "example.com");
refuses!(h09_exact_not_its_decoded_form, "example.com", "xn--example.com");

allows!(wild_one_label, "*.example.com", "a.example.com");
allows!(wild_two_labels, "*.example.com", "a.b.example.com");
allows!(wild_case, "*.Example.com", "A.EXAMPLE.COM.");
allows!(wild_number_labels, "*.example.com", "127.0.0.1.example.com");
refuses!(h13_wild_not_apex, "*.example.com", "example.com");
refuses!(h13_wild_not_without_boundary, "*.example.com", "badexample.com");
refuses!(wild_not_inside, "*.example.com", "a.example.com.evil.test");
refuses!(wild_not_parent, "*.b.example.com", "a.example.com");
allows!(wild_single_label_base, "*.test", "a.test");
refuses!(wild_single_label_base_not_itself, "*.test", "test");
allows!(any_covers_every_name, "*", "anything.at.all");
