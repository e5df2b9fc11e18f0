// SPDX-License-Identifier: GPL-2.0

//! A test module that commits the fault named by its parameter `fault` while it loads, so that a
//! test can see that a kernel with checkers reports it:
//!
//! - `none`: nothing; the rest of the module runs. A report then is a false one.
//! - `use-after-free`, `leak`, `lock-order`, `overflow`: in Rust code.
//! - `use-after-free-c`, `bounds-c`, `sleep-c`: in the C part.

#![crate_name = "debug_probe"]

use core::hint::black_box;
use core::mem::ManuallyDrop;
use kernel::prelude::*;
use kernel::sync::{new_mutex, Mutex};

extern "C" {
    /// Index of the parameter's value in the list in faults.c.
    static probe_fault: c_int;
    fn probe_use_after_free() -> c_int;
    fn probe_bounds() -> c_int;
    fn probe_sleep();
}

/// Reads freed memory.
#[inline(never)]
fn probe_rust_use_after_free() -> Result {
    let number = KBox::new([7u64; 8], GFP_KERNEL)?;
    let stale: *const u64 = black_box(&raw const number[3]);
    drop(number);
    // SAFETY: none; that is the fault to be reported.
    let value = unsafe { stale.read_volatile() };
    pr_info!("read {value} after the free\n");
    Ok(())
}

/// Loses the only pointer to an allocation.
#[inline(never)]
fn probe_rust_leak() -> Result {
    for n in 0..8u64 {
        // Eight, as a stale copy of the pointer on a stack or in a register may hide one.
        let _ = ManuallyDrop::new(KBox::new([n; 40], GFP_KERNEL)?);
    }
    Ok(())
}

#[pin_data]
struct Pair {
    #[pin]
    a: Mutex<u32>,
    #[pin]
    b: Mutex<u32>,
}

/// Takes two locks in one order and then in the other: no deadlock with one task, but a promise of one.
#[inline(never)]
fn probe_rust_lock_order(both_orders: bool) -> Result {
    let pair = KBox::pin_init(
        pin_init!(Pair { a <- new_mutex!(1), b <- new_mutex!(2) }),
        GFP_KERNEL,
    )?;
    {
        let a = pair.a.lock();
        let mut b = pair.b.lock();
        *b += *a;
    }
    if both_orders {
        let b = pair.b.lock();
        let mut a = pair.a.lock();
        *a += *b;
    }
    Ok(())
}

/// Adds beyond the type's range.
#[inline(never)]
fn probe_rust_overflow() {
    let n: u8 = black_box(u8::MAX);
    pr_info!("sum {}\n", n + black_box(1));
}

struct Probe;

impl kernel::Module for Probe {
    fn init(_module: &'static ThisModule) -> Result<Self> {
        // SAFETY: written before init by the parameter's setter only.
        match unsafe { probe_fault } {
            0 => {
                probe_rust_lock_order(false)?;
                drop(KBox::new([1u64; 40], GFP_KERNEL)?);
            }
            1 => probe_rust_use_after_free()?,
            2 => probe_rust_leak()?,
            3 => probe_rust_lock_order(true)?,
            4 => probe_rust_overflow(),
            5 => {
                // SAFETY: frees and reads memory of its own.
                let value = unsafe { probe_use_after_free() };
                pr_info!("read {value} after the free\n");
            }
            6 => {
                // SAFETY: reads an array of its own.
                let value = unsafe { probe_bounds() };
                pr_info!("read {value} out of bounds\n");
            }
            // SAFETY: may sleep here; that it pretends not to is the fault.
            7 => unsafe { probe_sleep() },
            _ => return Err(EINVAL),
        }
        pr_info!("done\n");
        Ok(Probe)
    }
}

module! {
    type: Probe,
    name: "debug_probe",
    authors: ["The ipoib-rs developers"],
    description: "Faults on demand for kernels with checkers (test only)",
    license: "GPL",
}
