"""scripts/check-arrows finds what it is there to find."""

import importlib.machinery
import importlib.util
import pathlib

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "scripts" / "check-arrows"
loader = importlib.machinery.SourceFileLoader("check_arrows", str(SCRIPT))
arrows = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_arrows", loader))
loader.exec_module(arrows)


def complaints(tmp_path, name, text):
    path = tmp_path / "src" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return arrows.check(tmp_path)


@pytest.mark.parametrize("name, text", [
    ("net/skb.rs", "use crate::rdma::Qp;"),
    ("net/skb.rs", "use crate::{\n    base::lock::{Lock, Guard},\n    ipoib::x,\n};"),
    ("net/deep/skb.rs", "use super::super::super::rdma::Qp;"),
    ("net/mod.rs", "use super::ipoib;"),
    ("base/lock.rs", "fn f() { crate::net::g(); }"),
    ("control/join.rs", "use crate::base::time;"),
    ("control/join.rs", "use kernel::prelude::*;"),
    ("wire/gid.rs", "extern crate alloc; use alloc::vec;\nfn f() { std::mem::swap() }"),
    ("ipoib/rx.rs", "use crate::sys::bindings;"),
    ("ipoib/rx.rs", "fn f() { unsafe { g() } }"),
    ("wire/gid.rs", "unsafe impl Send for X {}"),
    ("extra/x.rs", ""),
    ("ipoib/rx.rs", "use crate::sys::params::Params;"),
    ("net/long.rs", "\n" * 601),
    ("net/skb.rs", "#[cfg(CONFIG_RUSTC_HAS_X)]\nfn f() {}"),
    ("../bindings/helpers.c", "#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 3, 0)\n#endif"),
])
def test_complains(tmp_path, name, text):
    assert complaints(tmp_path, name, text)


@pytest.mark.parametrize("name, text", [
    ("net/skb.rs", "use crate::{base::lock, sys, wire::Gid};\nuse super::device::Device;"),
    ("net/skb.rs", "unsafe { f() }"),
    ("ipoib/rx.rs", "use crate::base::params::Params;\nuse crate::{control, net, rdma};"),
    ("ipoib/rx.rs", "// unsafe is for others\n/* crate::sys::x */ fn f() -> &'static str { \"unsafe crate::sys::x\" }"),
    ("control/join.rs", "use crate::wire::Gid;\nuse core::mem;\nuse super::path;"),
    ("main.rs", "mod net; use crate::ipoib::x; unsafe {}"),
    ("net/quote.rs", "fn f<'a>(x: &'a u8) { g('\"'); } // crate::rdma"),
    ("net/long.rs", "\n" * 600),
    ("sys/compat.rs", "#[cfg(CONFIG_RUSTC_HAS_X)]\nfn f() {}"),
    ("net/skb.rs", "// LINUX_VERSION_CODE\n#[cfg(CONFIG_RUST_DEBUG_ASSERTIONS)]\nfn f() {}"),
    ("../bindings/compat.h", "#if LINUX_VERSION_CODE < KERNEL_VERSION(7, 3, 0)\n#endif"),
])
def test_accepts(tmp_path, name, text):
    assert complaints(tmp_path, name, text) == []
