// SPDX-License-Identifier: GPL-2.0

//! The kernel's atomics over loom's.
//!
//! Loom's cannot be made in a constant, as these must; so an atomic becomes one of loom's with the first store or exchange,
//! and loads before that read the first value. To loom that is when it is made, which must come before any other thread
//! knows of it: `pin_init!` sees to it for the fields that it makes, models for the rest.

use std::sync::OnceLock;

use loom::sync::atomic::{fence, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crate::fault::{has, Fault};
use crate::init::Touch;

/// An ordering, as a type.
pub trait Order {
    /// For a load, a store, and an exchange.
    const ORDERS: (Ordering, Ordering, Ordering);
    /// Whether there is a full barrier on both sides.
    const FULL: bool = false;
}

/// No ordering.
pub struct Relaxed;
/// What was released before is visible.
pub struct Acquire;
/// What was written before is visible to who acquires.
pub struct Release;
/// A full barrier on both sides.
pub struct Full;

impl Order for Relaxed {
    const ORDERS: (Ordering, Ordering, Ordering) =
        (Ordering::Relaxed, Ordering::Relaxed, Ordering::Relaxed);
}
impl Order for Acquire {
    const ORDERS: (Ordering, Ordering, Ordering) =
        (Ordering::Acquire, Ordering::Relaxed, Ordering::Acquire);
}
impl Order for Release {
    const ORDERS: (Ordering, Ordering, Ordering) =
        (Ordering::Relaxed, Ordering::Release, Ordering::Release);
}
impl Order for Full {
    const ORDERS: (Ordering, Ordering, Ordering) =
        (Ordering::Acquire, Ordering::Release, Ordering::AcqRel);
    const FULL: bool = true;
}

/// A full barrier.
pub fn smp_mb() {
    if !has(Fault::NoBarrier) {
        fence(Ordering::SeqCst);
    }
}

fn full<O: Order>() {
    if O::FULL && !has(Fault::NoRelease) {
        fence(Ordering::SeqCst);
    }
}

fn exchange<O: Order>() -> Ordering {
    let (_, _, order) = O::ORDERS;
    match order {
        Ordering::Release if has(Fault::NoRelease) => Ordering::Relaxed,
        Ordering::AcqRel if has(Fault::NoRelease) => Ordering::Acquire,
        order => order,
    }
}

/// What an atomic may hold.
pub trait Value: Copy + PartialEq {
    /// Loom's atomic.
    type Cell;
    #[doc(hidden)]
    fn cell(self) -> Self::Cell;
    #[doc(hidden)]
    fn load(cell: &Self::Cell, order: Ordering) -> Self;
    #[doc(hidden)]
    fn store(self, cell: &Self::Cell, order: Ordering);
    #[doc(hidden)]
    fn swap(self, cell: &Self::Cell, order: Ordering) -> Self;
    #[doc(hidden)]
    fn cas(cell: &Self::Cell, old: Self, new: Self, order: Ordering) -> Result<Self, Self>;
    #[doc(hidden)]
    fn add(self, cell: &Self::Cell, order: Ordering) -> Self;
    #[doc(hidden)]
    fn sub(self, cell: &Self::Cell, order: Ordering) -> Self;
    #[doc(hidden)]
    fn end(cell: &mut Self::Cell) -> Self;
}

macro_rules! value {
    ($type:ty, $cell:ty) => {
        impl Value for $type {
            type Cell = $cell;
            fn cell(self) -> $cell {
                <$cell>::new(self)
            }
            fn load(cell: &$cell, order: Ordering) -> Self {
                cell.load(order)
            }
            fn store(self, cell: &$cell, order: Ordering) {
                cell.store(self, order);
            }
            fn swap(self, cell: &$cell, order: Ordering) -> Self {
                cell.swap(self, order)
            }
            fn cas(cell: &$cell, old: Self, new: Self, order: Ordering) -> Result<Self, Self> {
                cell.compare_exchange(old, new, order, Ordering::Relaxed)
            }
            fn add(self, cell: &$cell, order: Ordering) -> Self {
                cell.fetch_add(self, order)
            }
            fn sub(self, cell: &$cell, order: Ordering) -> Self {
                cell.fetch_sub(self, order)
            }
            fn end(cell: &mut $cell) -> Self {
                cell.with_mut(|value| *value)
            }
        }
    };
}

value!(u32, AtomicU32);
value!(i32, AtomicI32);
value!(u64, AtomicU64);

/// For numbers that outlive the runs of a model; not examined.
impl Value for i64 {
    type Cell = std::sync::atomic::AtomicI64;
    fn cell(self) -> Self::Cell {
        Self::Cell::new(self)
    }
    fn load(cell: &Self::Cell, _: Ordering) -> Self {
        cell.load(Ordering::SeqCst)
    }
    fn store(self, cell: &Self::Cell, _: Ordering) {
        cell.store(self, Ordering::SeqCst);
    }
    fn swap(self, cell: &Self::Cell, _: Ordering) -> Self {
        cell.swap(self, Ordering::SeqCst)
    }
    fn cas(cell: &Self::Cell, old: Self, new: Self, _: Ordering) -> Result<Self, Self> {
        cell.compare_exchange(old, new, Ordering::SeqCst, Ordering::SeqCst)
    }
    fn add(self, cell: &Self::Cell, _: Ordering) -> Self {
        cell.fetch_add(self, Ordering::SeqCst)
    }
    fn sub(self, cell: &Self::Cell, _: Ordering) -> Self {
        cell.fetch_sub(self, Ordering::SeqCst)
    }
    fn end(cell: &mut Self::Cell) -> Self {
        *cell.get_mut()
    }
}

impl<T> Value for *mut T {
    type Cell = AtomicUsize;
    fn cell(self) -> AtomicUsize {
        AtomicUsize::new(self as usize)
    }
    fn load(cell: &AtomicUsize, order: Ordering) -> Self {
        cell.load(order) as Self
    }
    fn store(self, cell: &AtomicUsize, order: Ordering) {
        cell.store(self as usize, order);
    }
    fn swap(self, cell: &AtomicUsize, order: Ordering) -> Self {
        cell.swap(self as usize, order) as Self
    }
    fn cas(cell: &AtomicUsize, old: Self, new: Self, order: Ordering) -> Result<Self, Self> {
        cell.compare_exchange(old as usize, new as usize, order, Ordering::Relaxed)
            .map(|old| old as Self)
            .map_err(|old| old as Self)
    }
    fn add(self, _: &AtomicUsize, _: Ordering) -> Self {
        unreachable!("pointers are not added up")
    }
    fn sub(self, _: &AtomicUsize, _: Ordering) -> Self {
        unreachable!("pointers are not added up")
    }
    fn end(cell: &mut AtomicUsize) -> Self {
        cell.with_mut(|value| *value as Self)
    }
}

/// The kernel's atomic.
pub struct Atomic<T: Value> {
    first: T,
    cell: OnceLock<T::Cell>,
}

// SAFETY: it is an atomic; what a pointer leads to is its user's business, as with the kernel's.
unsafe impl<T: Value> Send for Atomic<T> {}
// SAFETY: as above.
unsafe impl<T: Value> Sync for Atomic<T> {}

impl<T: Value> Atomic<T> {
    /// Holds `first`.
    pub const fn new(first: T) -> Self {
        Self {
            first,
            cell: OnceLock::new(),
        }
    }

    fn cell(&self) -> &T::Cell {
        self.cell.get_or_init(|| self.first.cell())
    }

    /// Reads.
    pub fn load<O: Order>(&self, _: O) -> T {
        self.cell
            .get()
            .map_or(self.first, |cell| T::load(cell, O::ORDERS.0))
    }

    /// Writes.
    pub fn store<O: Order>(&self, value: T, _: O) {
        let order = match O::ORDERS.1 {
            Ordering::Release if has(Fault::NoRelease) => Ordering::Relaxed,
            order => order,
        };
        value.store(self.cell(), order);
    }

    /// Exchanges.
    pub fn xchg<O: Order>(&self, value: T, _: O) -> T {
        full::<O>();
        let old = value.swap(self.cell(), exchange::<O>());
        full::<O>();
        old
    }

    /// Exchanges `old` for `new`.
    pub fn cmpxchg<O: Order>(&self, old: T, new: T, _: O) -> Result<T, T> {
        full::<O>();
        let result = T::cas(self.cell(), old, new, exchange::<O>());
        full::<O>();
        result
    }

    /// Adds.
    pub fn add<O: Order>(&self, value: T, order: O) {
        let _ = self.fetch_add(value, order);
    }

    /// Adds; what was there before.
    pub fn fetch_add<O: Order>(&self, value: T, _: O) -> T {
        full::<O>();
        let old = value.add(self.cell(), exchange::<O>());
        full::<O>();
        old
    }

    /// Subtracts; what was there before.
    pub fn fetch_sub<O: Order>(&self, value: T, _: O) -> T {
        full::<O>();
        let old = value.sub(self.cell(), exchange::<O>());
        full::<O>();
        old
    }

    /// The value, without any others.
    pub fn get_mut(&mut self) -> &mut T {
        if let Some(mut cell) = self.cell.take() {
            self.first = T::end(&mut cell);
        }
        &mut self.first
    }
}

impl<T: Value> Touch for Atomic<T> {
    fn touch(&self) {
        let _ = self.cell();
    }
}
