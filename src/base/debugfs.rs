// SPDX-License-Identifier: GPL-2.0

//! The module's directory in debugfs.

use kernel::{
    debugfs::Dir,
    prelude::*,
    sync::atomic::{
        Acquire,
        Atomic,
        Full,
        Release, //
    },
};

kernel::sync::global_lock! {
    // SAFETY: only `Root::new` and its like use it, after `READY` says that it is initialised.
    unsafe(uninit) static ROOT: Mutex<Option<Dir>> = None;
}

/// How far `ROOT` is: 0 untouched, 1 being initialised, 2 initialised.
static READY: Atomic<u32> = Atomic::new(0);

/// The directory while it exists; dropping this removes it as soon as the files in it are gone.
pub(crate) struct Root(());

impl Root {
    /// Makes the directory `name`. A failure of debugfs is no failure of the module: files in it
    /// are then not to be seen. May sleep.
    ///
    /// # Errors
    ///
    /// `EBUSY` if there has been one since the module was loaded.
    pub(crate) fn new(name: &CStr) -> Result<Self> {
        READY.cmpxchg(0, 1, Full).map_err(|_| EBUSY)?;
        // SAFETY: the exchange above succeeds once.
        unsafe { ROOT.init() };
        READY.store(2, Release);
        *ROOT.lock() = Some(Dir::new(name));
        Ok(Self(()))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let dir = ROOT.lock().take();
        drop(dir);
    }
}

/// The module's directory, while there is one. May sleep.
pub(crate) fn dir() -> Option<Dir> {
    if READY.load(Acquire) != 2 {
        return None;
    }
    ROOT.lock().clone()
}
