// SPDX-License-Identifier: GPL-2.0

//! Makes the verbs bindings from the installed rdma-core headers with the bindgen command.
//!
//! Only functions that libibverbs exports are asked for. Those that its header defines inline (posting and
//! polling) are calls through the context's operations, which `src/verbs.rs` makes itself.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const FUNCTIONS: &[&str] = &[
    "ibv_get_device_list",
    "ibv_free_device_list",
    "ibv_get_device_name",
    "ibv_open_device",
    "ibv_close_device",
    "ibv_query_gid",
    "ibv_alloc_pd",
    "ibv_dealloc_pd",
    "ibv_reg_mr",
    "ibv_dereg_mr",
    "ibv_create_cq",
    "ibv_destroy_cq",
    "ibv_create_qp",
    "ibv_modify_qp",
    "ibv_destroy_qp",
    "ibv_create_ah",
    "ibv_destroy_ah",
    "ibv_attach_mcast",
    "ibv_detach_mcast",
    "ibv_wc_status_str",
];

const TYPES: &[&str] = &[
    "ibv_qp_attr_mask",
    "ibv_access_flags",
    "ibv_send_flags",
    "ibv_wc_flags",
];

fn main() {
    let out =
        PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR")).join("bindings.rs");
    let mut bindgen = Command::new("bindgen");
    bindgen.args([
        "--no-layout-tests",
        "--default-enum-style",
        "consts",
        "--no-prepend-enum-name",
    ]);
    bindgen
        .args(["--rust-target", "1.82", "--output"])
        .arg(&out);
    for name in FUNCTIONS {
        bindgen.args(["--allowlist-function", name]);
    }
    for name in TYPES {
        bindgen.args(["--allowlist-type", name]);
    }
    bindgen.arg("verbs.h");
    let status = bindgen
        .status()
        .expect("the bindgen command is not installed");
    assert!(status.success(), "bindgen failed");
    println!("cargo:rerun-if-changed=verbs.h");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-link-lib=ibverbs");
}
