// SPDX-License-Identifier: GPL-2.0

//! The module's directory in debugfs.

use kernel::{
    debugfs::Dir,
    prelude::*,
    str::CString, //
};

use super::once::Once;

/// The directory and the names that are taken in it.
struct State {
    dir: Dir,
    names: KVec<CString>,
}

kernel::sync::global_lock! {
    // SAFETY: only `Root::new` and its like use it, after `READY` says that it is initialised.
    unsafe(uninit) static ROOT: Mutex<Option<State>> = None;
}

/// How far `ROOT` is.
static READY: Once = Once::new();

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
        // SAFETY: called once.
        READY.call(|| unsafe { ROOT.init() })?;
        *ROOT.lock() = Some(State {
            dir: Dir::new(name),
            names: KVec::new(),
        });
        Ok(Self(()))
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        let state = ROOT.lock().take();
        drop(state);
    }
}

/// A name in the module's directory that nothing else of the module has. Free again when dropped.
pub(crate) struct Name {
    dir: Dir,
    name: CString,
}

impl Name {
    /// Takes the name `wanted`, or `wanted.1`, `wanted.2`, ... where that is taken: interfaces in
    /// different network namespaces may bear the same name. `None` while there is no directory.
    /// May sleep.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn take(wanted: &CStr) -> Result<Option<Self>> {
        if !READY.is_done() {
            return Ok(None);
        }
        let mut root = ROOT.lock();
        let Some(state) = root.as_mut() else {
            return Ok(None);
        };
        let mut name = CString::try_from(wanted)?;
        // Ends: each round that goes on has met another of finitely many names.
        let mut suffix = 0u32;
        while state.names.iter().any(|taken| **taken == *name) {
            suffix = suffix.wrapping_add(1);
            name = CString::try_from_fmt(fmt!("{}.{}", wanted, suffix))?;
        }
        let entry = CString::try_from(&*name)?;
        state.names.push(entry, GFP_KERNEL)?;
        Ok(Some(Self {
            dir: state.dir.clone(),
            name,
        }))
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Dir {
        &self.dir
    }

    /// The name.
    pub(crate) fn as_cstr(&self) -> &CStr {
        &self.name
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut root = ROOT.lock();
        let Some(state) = root.as_mut() else {
            return;
        };
        if let Some(i) = state.names.iter().position(|taken| **taken == *self.name) {
            // It cannot fail: the position is one of the vector's.
            let _ = state.names.remove(i);
        }
    }
}
