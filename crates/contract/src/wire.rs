//! The parts of a message: numbers, texts and lists.

use alloc::vec::Vec;

pub(crate) fn put(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.extend(u32::try_from(bytes.len()).ok()?.to_le_bytes());
    out.extend_from_slice(bytes);
    Some(())
}

pub(crate) fn put_list(out: &mut Vec<u8>, list: &[Vec<u8>]) -> Option<()> {
    put_each(out, list, |bytes, out| put(out, bytes))
}

pub(crate) fn put_each<T>(
    out: &mut Vec<u8>,
    list: &[T],
    put: impl Fn(&T, &mut Vec<u8>) -> Option<()>,
) -> Option<()> {
    out.extend(u32::try_from(list.len()).ok()?.to_le_bytes());
    list.iter().try_for_each(|it| put(it, out))
}

pub(crate) fn take_array<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (head, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*head)
}

pub(crate) fn take_list(rest: &mut &[u8]) -> Option<Vec<Vec<u8>>> {
    take_each(rest, take_bytes)
}

pub(crate) fn take_each<T>(rest: &mut &[u8], take: impl Fn(&mut &[u8]) -> Option<T>) -> Option<Vec<T>> {
    let count = u32::from_le_bytes(take_array(rest)?);
    // Reserves no capacity for a number from the wire: a hostile count must not allocate.
    (0..count).map(|_| take(rest)).collect()
}

pub(crate) fn take_bytes(rest: &mut &[u8]) -> Option<Vec<u8>> {
    let length = usize::try_from(u32::from_le_bytes(take_array(rest)?)).ok()?;
    let (head, tail) = rest.split_at_checked(length)?;
    *rest = tail;
    Some(head.to_vec())
}

pub(crate) fn take_flag(rest: &mut &[u8]) -> Option<bool> {
    match take_array(rest)? {
        [0] => Some(false),
        [1] => Some(true),
        _ => None,
    }
}
