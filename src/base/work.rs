// SPDX-License-Identifier: GPL-2.0

//! Ordered workqueues of our own, and the operations on work items that the kernel crate lacks:
//! run now, run later unless already pending, cancel and wait.
//!
//! C header: [`include/linux/workqueue.h`](srctree/include/linux/workqueue.h)

use core::{
    ops::Deref,
    ptr::NonNull, //
};

use kernel::{
    container_of,
    prelude::*,
    sync::Arc,
    workqueue::{
        HasDelayedWork,
        Queue,
        RawDelayedWorkItem,
        RawWorkItem,
        Work,
        WorkItem, //
    }, //
};

use super::time;
use crate::sys::bindings;

/// An owned workqueue that runs one item at a time.
///
/// Dropping it runs what is still pending to its end and frees the queue; it sleeps, and must not
/// happen inside one of the queue's own items.
///
/// # Invariants
///
/// `ptr` is a live workqueue that this value owns.
pub(crate) struct OrderedQueue {
    ptr: NonNull<bindings::workqueue_struct>,
}

// SAFETY: workqueues may be used and destroyed from any thread.
unsafe impl Send for OrderedQueue {}
// SAFETY: all operations on a workqueue are internally locked.
unsafe impl Sync for OrderedQueue {}

impl OrderedQueue {
    /// Allocates a queue. `mem_reclaim` gives it a rescuer thread, for queues that must go on when
    /// memory is short. May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(name: &CStr, mem_reclaim: bool) -> Result<Self> {
        // SAFETY: `name` is a C string and is copied by the callee.
        let ptr = unsafe { bindings::ipoib_h_alloc_ordered_wq(name.as_char_ptr(), mem_reclaim) };
        // INVARIANT: a non-null result is a new workqueue that nobody else knows.
        Ok(Self {
            ptr: NonNull::new(ptr).ok_or(ENOMEM)?,
        })
    }

    /// Makes `item` run as soon as possible, also when it was pending for later. Any context.
    ///
    /// An item that is running now runs again afterwards, so no kick is lost.
    pub(crate) fn kick<T, const ID: u64>(&self, item: Arc<T>)
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID> + Send + Sync + 'static,
        Arc<T>: RawDelayedWorkItem<ID> + RawWorkItem<ID, EnqueueOutput = Result<(), Arc<T>>>,
    {
        let wq = self.ptr.as_ptr();
        // SAFETY: the closure returns `false` only if the item was pending already, as
        // `mod_delayed_work_on` reports. `HasDelayedWork` says that the `work_struct` is the
        // `work` field of a `delayed_work`, and `self.ptr` is live by the type invariant.
        let queued = unsafe {
            item.__enqueue(|work| {
                !bindings::mod_delayed_work_on(
                    kernel::bindings::wq_misc_consts_WORK_CPU_UNBOUND as i32,
                    wq,
                    container_of!(work, bindings::delayed_work, work),
                    0,
                )
            })
        };
        // The item was pending: that queueing keeps its own reference, ours goes.
        drop(queued);
    }

    /// Waits until everything that is queued now has run, also what is delayed no longer. May sleep;
    /// not from one of the queue's items.
    pub(crate) fn flush(&self) {
        // SAFETY: live by the type invariant.
        unsafe { bindings::__flush_workqueue(self.ptr.as_ptr()) }
    }

    /// Makes `item` run in `ms` milliseconds, unless it is pending already. Any context.
    pub(crate) fn run_in<T, const ID: u64>(&self, item: Arc<T>, ms: u64)
    where
        T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID> + Send + Sync + 'static,
        Arc<T>: RawDelayedWorkItem<ID> + RawWorkItem<ID, EnqueueOutput = Result<(), Arc<T>>>,
    {
        let delay = time::ms_to_jiffies(ms) as usize;
        drop(self.enqueue_delayed(item, delay));
    }
}

impl Deref for OrderedQueue {
    type Target = Queue;

    fn deref(&self) -> &Queue {
        // SAFETY: live by the type invariant, for as long as `self` is borrowed.
        unsafe { Queue::from_raw(self.ptr.as_ptr()) }
    }
}

impl Drop for OrderedQueue {
    fn drop(&mut self) {
        // SAFETY: we own the queue, and nothing can enqueue on it through us any more.
        unsafe { bindings::destroy_workqueue(self.ptr.as_ptr()) }
    }
}

/// Takes `item` off its queue and waits until it does not run. May sleep; not from the item itself.
///
/// An item that is queued while this goes on, by itself included, is taken off again, or runs and is
/// waited for. The caller sees to it that nobody queues it later.
pub(crate) fn cancel_sync<T, const ID: u64>(item: &Arc<T>)
where
    T: WorkItem<ID, Pointer = Arc<T>> + HasDelayedWork<T, ID>,
{
    let ptr: *const T = &**item;
    // Not `cancel_delayed_work_sync`: while it waits, the item cannot be queued, and
    // `mod_delayed_work_on` does not say so. `kick` would leave behind the reference that belongs
    // to a pending item, for ever.
    loop {
        // SAFETY: `item` keeps the value, and with it the embedded `delayed_work`, alive.
        let (cancelled, waited) = unsafe {
            let work = Work::raw_get(T::raw_get_work(ptr.cast_mut()));
            (
                bindings::cancel_delayed_work(container_of!(work, bindings::delayed_work, work)),
                bindings::flush_work(work),
            )
        };
        if cancelled {
            // SAFETY: a pending item owns one reference, leaked by the enqueue; the cancellation
            // has taken the item off its queue, so that reference is ours to drop.
            drop(unsafe { Arc::from_raw(ptr) });
        }
        if !cancelled && !waited {
            break;
        }
    }
}
