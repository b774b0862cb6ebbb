//! The encoding of a message: how each type is written and read, once for both directions.

use alloc::vec::Vec;

/// A type with an encoding. Nothing in it is optional, so a prefix of an encoding is not one.
pub(crate) trait Wire: Sized {
    /// Appends the value. `None` if it is too long.
    fn put(&self, out: &mut Vec<u8>) -> Option<()>;

    /// Takes a value from the front. `None` if the bytes do not begin with one.
    fn take(rest: &mut &[u8]) -> Option<Self>;
}

/// A type of which there are lists. Bytes are no such type, because a list of them is copied as a whole.
pub(crate) trait Item: Wire {}

/// Defines types whose encoding is that of their fields, in this order. Before those of an enum is the number of the variant.
macro_rules! wire {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$of:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$about])*
        pub struct $name {
            $($(#[$of])* pub $field: $type,)*
        }

        impl Wire for $name {
            fn put(&self, out: &mut alloc::vec::Vec<u8>) -> Option<()> {
                $(self.$field.put(out)?;)*
                Some(())
            }

            fn take(rest: &mut &[u8]) -> Option<Self> {
                Some(Self { $($field: Wire::take(rest)?,)* })
            }
        }
    };
    ($(#[$about:meta])* pub enum $name:ident {
        $($(#[$of:meta])* $variant:ident
            $(($inner:ident: $inner_type:ty))?
            $({ $($(#[$of_field:meta])* $field:ident: $type:ty,)* })? = $number:literal,)*
    }) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$of])* $variant $(($inner_type))? $({ $($(#[$of_field])* $field: $type,)* })?,)*
        }

        impl Wire for $name {
            fn put(&self, out: &mut alloc::vec::Vec<u8>) -> Option<()> {
                match self {
                    $(Self::$variant $(($inner))? $({ $($field),* })? => {
                        out.push($number);
                        $($inner.put(out)?;)?
                        $($($field.put(out)?;)*)?
                    })*
                }
                Some(())
            }

            fn take(rest: &mut &[u8]) -> Option<Self> {
                Some(match u8::take(rest)? {
                    $($number => Self::$variant
                        $((<$inner_type>::take(rest)?))?
                        $({ $($field: Wire::take(rest)?,)* })?,)*
                    _ => return None,
                })
            }
        }
    };
}

pub(crate) use wire;

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Wire for $number {
            fn put(&self, out: &mut Vec<u8>) -> Option<()> {
                out.extend(self.to_le_bytes());
                Some(())
            }

            fn take(rest: &mut &[u8]) -> Option<Self> {
                <[u8; size_of::<Self>()]>::take(rest).map(Self::from_le_bytes)
            }
        }
    )*};
}

numbers!(u8 u16 u32 u64 i32);

impl Item for u16 {}

impl Wire for bool {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        u8::from(*self).put(out)
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        match u8::take(rest)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Wire> Wire for Option<T> {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        self.is_some().put(out)?;
        self.iter().try_for_each(|value| value.put(out))
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        Some(if bool::take(rest)? { Some(T::take(rest)?) } else { None })
    }
}

impl<A: Wire, B: Wire> Wire for (A, B) {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        self.0.put(out)?;
        self.1.put(out)
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        Some((A::take(rest)?, B::take(rest)?))
    }
}

impl<A: Wire, B: Wire> Item for (A, B) {}

impl Wire for Vec<u8> {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        u32::try_from(self.len()).ok()?.put(out)?;
        out.extend_from_slice(self);
        Some(())
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let length = usize::try_from(u32::take(rest)?).ok()?;
        let (head, tail) = rest.split_at_checked(length)?;
        *rest = tail;
        Some(head.to_vec())
    }
}

impl Item for Vec<u8> {}

impl<T: Item> Wire for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        u32::try_from(self.len()).ok()?.put(out)?;
        self.iter().try_for_each(|item| item.put(out))
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let count = u32::take(rest)?;
        // Reserves no capacity for a number from the wire: a hostile count must not allocate.
        (0..count).map(|_| T::take(rest)).collect()
    }
}

impl<const N: usize> Wire for [u8; N] {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        out.extend_from_slice(self);
        Some(())
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        let (head, tail) = rest.split_first_chunk::<N>()?;
        *rest = tail;
        Some(*head)
    }
}

impl Wire for [u16; 4] {
    fn put(&self, out: &mut Vec<u8>) -> Option<()> {
        self.iter().try_for_each(|number| number.put(out))
    }

    fn take(rest: &mut &[u8]) -> Option<Self> {
        Some([Wire::take(rest)?, Wire::take(rest)?, Wire::take(rest)?, Wire::take(rest)?])
    }
}
