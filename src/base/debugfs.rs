// SPDX-License-Identifier: GPL-2.0

//! The module's directory in debugfs.

use kernel::{
    debugfs::Dir,
    prelude::*, //
};

kernel::sync::global_lock! {
    // SAFETY: `Root::new` initialises it before the first use; without a `Root` nobody uses it.
    unsafe(uninit) static ROOT: Mutex<Option<Dir>> = None;
}

/// The directory while it exists; dropping this removes it as soon as the files in it are gone.
pub(crate) struct Root(());

impl Root {
    /// Makes the directory `name`. A failure of debugfs is no failure of the module: files in it
    /// are then not to be seen.
    ///
    /// # Safety
    ///
    /// Called once, before [`dir`] is.
    pub(crate) unsafe fn new(name: &CStr) -> Self {
        // SAFETY: the caller's promise.
        unsafe { ROOT.init() };
        *ROOT.lock() = Some(Dir::new(name));
        Self(())
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let dir = ROOT.lock().take();
        drop(dir);
    }
}

/// The module's directory. May sleep. Only while the module's [`Root`] exists.
pub(crate) fn dir() -> Option<Dir> {
    ROOT.lock().clone()
}
