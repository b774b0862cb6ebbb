//! Allocates memory for a program with one thread and little use. It is not a general allocator: it supports one thread only, and
//! never returns small blocks to the kernel.

use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

use super::call::{Number, syscall};

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(State { free: [None; CLASSES], next: ptr::null_mut(), left: 0 }));

/// Size of the smallest block, and the alignment of every block.
const SMALLEST: usize = 16;
/// Number of block sizes: 16 bytes to 64 KiB, doubling. A larger block gets a mapping, which ends when it is freed.
const CLASSES: usize = 13;
const LARGEST: usize = SMALLEST << (CLASSES - 1);
/// Bytes mapped at once for blocks. An unused page costs nothing.
const CHUNK: usize = 256 * 1024;
/// Every mapping is aligned to a page, and no page is smaller.
const PAGE: usize = 4096;

struct Heap(UnsafeCell<State>);

// SAFETY: stage2 starts no thread and has no signal handler, so nothing runs at the same time as a call.
unsafe impl Sync for Heap {}

struct State {
    /// A list of free blocks for each size. Each block holds the pointer to the next.
    free: [Option<NonNull<Free>>; CLASSES],
    /// The unused part of the newest chunk.
    next: *mut u8,
    left: usize,
}

struct Free {
    next: Option<NonNull<Free>>,
}

/// Returns the index of the block size for a layout, or `None` if it gets a mapping.
fn class(layout: Layout) -> Option<usize> {
    let size = layout.size().max(SMALLEST);
    let fits = size <= LARGEST && layout.align() <= SMALLEST;
    // 16 is 2^4.
    fits.then(|| size.next_power_of_two().trailing_zeros() as usize - 4)
}

// SAFETY: only one caller has a block at a time. It is as large as its class, and so as the layout, and is aligned to 16 bytes or to
// a page, which `class` and `alloc` compare with the layout. Nothing here unwinds.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(class) = class(layout) else {
            return if layout.align() <= PAGE { map(layout.size()) } else { ptr::null_mut() };
        };
        // SAFETY: nothing else refers to the state during a call: see `Sync`.
        let state = unsafe { &mut *self.0.get() };
        let Some(list) = state.free.get_mut(class) else { return ptr::null_mut() };
        if let Some(block) = *list {
            // SAFETY: `dealloc` has written a `Free` at the start of every block in a list.
            *list = unsafe { block.as_ref() }.next;
            return block.as_ptr().cast();
        }
        let size = SMALLEST << class;
        if state.left < size {
            let chunk = map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            // The rest of the old chunk is lost; its pages were never used.
            (state.next, state.left) = (chunk, CHUNK);
        }
        let block = state.next;
        // SAFETY: `size` bytes are left of the chunk, so this is in it or at its end.
        state.next = unsafe { block.add(size) };
        state.left -= size;
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        let Some(class) = class(layout) else {
            // SAFETY: `alloc` has mapped this block for the same layout, and its caller gives it up. An error (too many mappings to
            // split one) leaves it mapped, which is harmless.
            let _ =
                unsafe { syscall(Number::Munmap, [block.expose_provenance(), layout.size(), 0, 0, 0, 0]) };
            return;
        };
        // SAFETY: nothing else refers to the state during a call: see `Sync`.
        let state = unsafe { &mut *self.0.get() };
        let Some((list, block)) = state.free.get_mut(class).zip(NonNull::new(block.cast::<Free>())) else {
            return;
        };
        // SAFETY: the block is ours again, at least 16 bytes large and aligned to 16.
        unsafe { block.write(Free { next: *list }) };
        *list = Some(block);
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees the layout.
        let block = unsafe { self.alloc(layout) };
        // A fresh mapping from the kernel is already zero.
        if class(layout).is_some() && !block.is_null() {
            // SAFETY: the block is at least as large as the layout.
            unsafe { block.write_bytes(0, layout.size()) };
        }
        block
    }
}

/// Maps fresh memory, or returns null without memory.
fn map(size: usize) -> *mut u8 {
    const PROT_READ_WRITE: usize = 0x03;
    const MAP_PRIVATE_ANONYMOUS: usize = 0x22;
    const NO_FILE: usize = usize::MAX;
    let arguments = [0, size, PROT_READ_WRITE, MAP_PRIVATE_ANONYMOUS, NO_FILE, 0];
    // SAFETY: without an address and MAP_FIXED, this changes no existing mapping.
    let mapped = unsafe { syscall(Number::Mmap, arguments) };
    mapped.map_or(ptr::null_mut(), ptr::with_exposed_provenance_mut)
}
