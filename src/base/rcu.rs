// SPDX-License-Identifier: GPL-2.0

//! Reference counted objects that RCU readers may use without taking a reference.
//!
//! [`RcuArc`] owns a reference; [`RcuPtr`] is a slot in which a writer publishes one. The object is
//! freed one grace period after the last reference is gone, so a reader that found it in a slot can
//! use it until its read-side section ends, whatever writers do meanwhile.
//!
//! C header: [`include/linux/rcupdate.h`](srctree/include/linux/rcupdate.h)

use core::{
    marker::PhantomData,
    mem::ManuallyDrop,
    ops::Deref,
    ptr::{null_mut, NonNull},
};
use kernel::{
    alloc::{AllocError, Flags},
    bindings,
    prelude::*,
    sync::{
        atomic::{Atomic, Full, Relaxed},
        rcu::Guard,
        Refcount,
    },
    types::Opaque,
};

use super::atomic::{Count, Word};
use crate::sys::compat::rcu_barrier;

/// The allocation behind an [`RcuArc`].
///
/// `head` comes first so that the address of the `rcu_head` is the address of the allocation.
#[pin_data]
#[repr(C)]
struct Inner<T> {
    head: Opaque<bindings::callback_head>,
    refs: Refcount,
    #[pin]
    value: T,
}

/// A counted reference to a `T` whose memory outlives every RCU read-side section that could have
/// seen it.
///
/// Cloning and dropping work in any context and never sleep. The drop of the last reference queues
/// an RCU callback; `T` is dropped in that callback, in softirq context, so the `Drop` of `T` must
/// not sleep. A module must call [`rcu_barrier`] after the last such drop and
/// before its text goes away.
///
/// # Invariants
///
/// `ptr` comes from [`KBox::into_raw`] and this value owns one count of `refs`. The allocation is
/// freed only by the RCU callback that the drop of the last count queues.
pub(crate) struct RcuArc<T> {
    ptr: NonNull<Inner<T>>,
    _p: PhantomData<Inner<T>>,
}

// SAFETY: A reference gives shared access to `T` and may drop it on another CPU, which is what
// `Sync` and `Send` of `T` permit.
unsafe impl<T: Send + Sync> Send for RcuArc<T> {}
// SAFETY: As above.
unsafe impl<T: Send + Sync> Sync for RcuArc<T> {}

impl<T: Send + Sync + 'static> RcuArc<T> {
    /// Moves `value` into a new counted allocation.
    ///
    /// Sleeps if `flags` allow it. When the allocation fails `value` is dropped at once.
    pub(crate) fn new(value: T, flags: Flags) -> Result<Self, AllocError> {
        let inner = KBox::new(
            Inner {
                head: Opaque::uninit(),
                refs: Refcount::new(1),
                value,
            },
            flags,
        )?;
        // SAFETY: `KBox::into_raw` returns a valid, hence non-null pointer.
        let ptr = unsafe { NonNull::new_unchecked(KBox::into_raw(inner)) };
        LIVE.add(1, Relaxed);
        // INVARIANT: `ptr` was just leaked from a `KBox`; `refs` is one and is ours.
        Ok(Self {
            ptr,
            _p: PhantomData,
        })
    }

    /// Allocates an object and initialises it in place. Sleeps if `flags` allow it.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn pin_init<I: PinInit<T>>(value: I, flags: Flags) -> Result<Self> {
        let inner = KBox::pin_init(
            pin_init!(Inner {
                head: Opaque::uninit(),
                refs: Refcount::new(1),
                value <- value,
            }),
            flags,
        )?;
        // SAFETY: nobody gets to move the value out of the allocation: it is only reached through
        // shared references, and dropped in place.
        let inner = unsafe { Pin::into_inner_unchecked(inner) };
        // SAFETY: `KBox::into_raw` returns a valid, hence non-null pointer.
        let ptr = unsafe { NonNull::new_unchecked(KBox::into_raw(inner)) };
        LIVE.add(1, Relaxed);
        // INVARIANT: `ptr` was just leaked from a `KBox`; `refs` is one and is ours.
        Ok(Self {
            ptr,
            _p: PhantomData,
        })
    }
}

impl<T> RcuArc<T> {
    /// Turns the reference into a raw pointer without giving up its count.
    fn into_raw(this: Self) -> *mut Inner<T> {
        ManuallyDrop::new(this).ptr.as_ptr()
    }

    /// Takes over a count from a raw pointer.
    ///
    /// # Safety
    ///
    /// A non-null `ptr` must come from [`RcuArc::into_raw`], and the count it stands for must not
    /// be used by anyone else.
    unsafe fn from_raw(ptr: *mut Inner<T>) -> Option<Self> {
        // INVARIANT: The caller hands over a count.
        NonNull::new(ptr).map(|ptr| Self {
            ptr,
            _p: PhantomData,
        })
    }
}

// A pointer may move whatever it points to.
impl<T> Unpin for RcuArc<T> {}

impl<T> Deref for RcuArc<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: By the type invariants the allocation lives as long as `self` holds its count.
        unsafe { &self.ptr.as_ref().value }
    }
}

impl<T> Clone for RcuArc<T> {
    #[inline]
    fn clone(&self) -> Self {
        // SAFETY: By the type invariants the allocation is valid.
        unsafe { self.ptr.as_ref() }.refs.inc();
        // INVARIANT: The count just taken belongs to the new value.
        Self {
            ptr: self.ptr,
            _p: PhantomData,
        }
    }
}

impl<T> Drop for RcuArc<T> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: By the type invariants the allocation is valid until this count is given up.
        let before = unsafe { self.ptr.as_ref() }.refs.as_atomic().take_one();
        if before == 1 {
            // SAFETY: The last count is gone, so no further callback can be queued for this
            // allocation, and it stays valid until `free` runs. `head` needs no initialisation.
            unsafe { bindings::call_rcu((*self.ptr.as_ptr()).head.get(), Some(free::<T>)) };
        } else if before <= 0 {
            // SAFETY: A saturated counter never gets to zero, so the allocation is never freed.
            saturate(unsafe { self.ptr.as_ref() }.refs.as_atomic());
        }
    }
}

/// Keeps a counter that has left the range of counts far away from it, as `refcount_t` does: what it counts leaks.
#[cold]
fn saturate(refs: &Atomic<i32>) {
    refs.put(i32::MIN / 2);
}

/// Drops and frees an object one grace period after its last reference.
///
/// # Safety
///
/// `head` must be the `head` of an [`Inner<T>`] that came from a `KBox` and to which no reference
/// is left.
unsafe extern "C" fn free<T>(head: *mut bindings::callback_head) {
    // SAFETY: `head` is the first field of a `repr(C)` struct that was leaked from a `KBox`; the
    // caller passes its ownership on.
    drop(unsafe { KBox::from_raw(head.cast::<Inner<T>>()) });
    LIVE.add(-1, Relaxed);
}

/// A slot that publishes at most one [`RcuArc`] to RCU readers.
///
/// Readers never wait. Writers exchange the content; two writers need no lock between them for
/// memory safety, but usually have one for their own logic.
///
/// # Invariants
///
/// `ptr` is null or holds one count of the [`RcuArc`] it came from.
pub(crate) struct RcuPtr<T> {
    ptr: Atomic<*mut Inner<T>>,
    _p: PhantomData<RcuArc<T>>,
}

impl<T: Send + Sync + 'static> RcuPtr<T> {
    /// A slot that publishes nothing.
    pub(crate) const fn null() -> Self {
        // INVARIANT: The slot is null.
        Self {
            ptr: Atomic::new(null_mut()),
            _p: PhantomData,
        }
    }

    /// The published object, usable until the read-side section ends.
    #[inline]
    pub(crate) fn load<'g>(&self, _guard: &'g Guard) -> Option<&'g T> {
        let ptr = NonNull::new(self.ptr.get_acquire())?;
        // SAFETY: The slot held a count when the pointer was read inside the read-side section that
        // `_guard` proves. Giving up that count frees the object after a grace period at the
        // earliest, and a grace period does not end before `'g` does.
        Some(unsafe { &(*ptr.as_ptr()).value })
    }

    /// The published object with a reference of its own.
    ///
    /// `None` when nothing is published, or when the object found is on its way out.
    #[inline]
    pub(crate) fn get(&self, _guard: &Guard) -> Option<RcuArc<T>> {
        let ptr = NonNull::new(self.ptr.get_acquire())?;
        // SAFETY: As in `load`, the allocation is valid while the read-side section lasts.
        let refs = unsafe { &(*ptr.as_ptr()).refs }.as_atomic();
        let mut seen = refs.get();
        loop {
            if seen == 0 {
                // The writer dropped the last count; a callback owns the object now.
                return None;
            }
            if seen < 0 {
                // A saturated counter never changes again: the object is never freed.
                break;
            }
            // Stepping over `i32::MAX` lands in the saturated range, which is what `refcount_t`
            // does as well.
            match refs.replace(seen, seen.wrapping_add(1)) {
                Ok(_) => break,
                Err(now) => seen = now,
            }
        }
        // INVARIANT: A count was taken above.
        Some(RcuArc {
            ptr,
            _p: PhantomData,
        })
    }

    /// Publishes `new` and returns what was published before.
    ///
    /// Readers may go on using the old object until their sections end, even after the returned
    /// reference is dropped.
    pub(crate) fn swap(&self, new: Option<RcuArc<T>>) -> Option<RcuArc<T>> {
        let new = new.map_or(null_mut(), RcuArc::into_raw);
        // INVARIANT: The slot takes over the count of `new`.
        let old = self.ptr.xchg(new, Full);
        // SAFETY: The slot owned a count of `old` and no longer does.
        unsafe { RcuArc::from_raw(old) }
    }

    /// Whether nothing is published at this moment.
    #[inline]
    pub(crate) fn is_none(&self) -> bool {
        self.ptr.get().is_null()
    }
}

impl<T> Drop for RcuPtr<T> {
    fn drop(&mut self) {
        // SAFETY: By the type invariants the slot owns a count, and nobody can reach it any more.
        drop(unsafe { RcuArc::from_raw(*self.ptr.get_mut()) });
    }
}

/// Objects allocated and not yet freed.
static LIVE: Atomic<i64> = Atomic::new(0);

/// Dropping this waits until every object is freed whose last reference is gone.
///
/// Freeing one may drop the last reference on another, whose own callback is then queued, so one
/// barrier is not enough. The module drops this last, when it holds no reference any more.
pub(crate) struct Drain;

impl Drop for Drain {
    fn drop(&mut self) {
        // A leaked reference would never go away: do not wait for it for ever.
        for _ in 0..DRAIN_ROUNDS {
            rcu_barrier();
            if LIVE.load(Relaxed) == 0 {
                return;
            }
        }
        pr_err!("{} RCU-managed objects leaked\n", LIVE.load(Relaxed));
    }
}

/// More links than any chain of objects has.
const DRAIN_ROUNDS: usize = 10_000;
