//! Defines the enums whose values each have one stable word: in policies, in records, and on the command line.

/// The text is not a word of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a word of the record")]
pub struct WordError;

/// Defines enums of which each value has a word. The word is written once; the value is listed, displayed, parsed and serialized by it.
#[macro_export]
macro_rules! words {
    ($($(#[$about:meta])* pub enum $name:ident { $($(#[$of:meta])* $value:ident = $word:literal,)* })*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $value,)*
        }

        impl $name {
            /// Lists every value, in the order of the definition.
            pub const ALL: [Self; [$($word),*].len()] = [$(Self::$value),*];

            /// Lists the words of the values; stable.
            pub const WORDS: &[&str] = &[$($word),*];

            /// Returns its word; stable.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $word,)*
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::WordError;

            fn from_str(text: &str) -> Result<Self, $crate::WordError> {
                Self::ALL.into_iter().find(|value| value.as_str() == text).ok_or($crate::WordError)
            }
        }

        impl ::serde::Serialize for $name {
            fn serialize<S: ::serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    )*};
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BackendName, Ech, Mode, Reason, Verdict};

    #[test]
    fn parses_every_word_back() {
        macro_rules! parse {
            ($($name:ident)*) => {$(
                for value in $name::ALL {
                    assert_eq!(value.as_str().parse(), Ok(value));
                    assert_eq!(value.to_string(), value.as_str());
                    assert_eq!(serde_json::to_value(value).unwrap(), value.as_str());
                }
                assert_eq!($name::ALL.map($name::as_str), $name::WORDS);
            )*};
        }
        parse!(Reason Verdict Mode Ech BackendName);
        assert_eq!("allowed".parse::<Verdict>(), Err(WordError));
    }
}
