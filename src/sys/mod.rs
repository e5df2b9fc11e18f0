// SPDX-License-Identifier: GPL-2.0

//! Raw layer: the generated bindings, the types they share with the kernel crate, and the checks
//! that both views agree. Nothing else; only `base`, `rdma` and `net` may name it.

pub(crate) mod compat;

#[allow(
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    improper_ctypes,
    unreachable_pub,
    unknown_lints, // A compiler need not know all of these.
    unnecessary_transmutes,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks,
    clippy::cast_lossless,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::as_underscore,
    clippy::missing_safety_doc
)]
pub(crate) mod bindings {
    // Which of them the generated structures name depends on the kernel's configuration.
    #[allow(unused_imports)]
    pub(crate) use kernel::bindings::{
        attribute,
        attribute_group,
        attribute_group__bindgen_ty_2,
        callback_head,
        completion,
        delayed_work,
        dentry,
        device,
        device_attribute,
        device_attribute__bindgen_ty_1,
        device_attribute__bindgen_ty_2,
        file,
        inode,
        kobject,
        lock_class_key,
        mm_struct,
        module,
        mutex,
        net,
        page,
        seq_file,
        spinlock_t,
        task_struct,
        work_struct,
        workqueue_struct, //
    };
    use pin_init::{
        MaybeZeroable,
        Zeroable, //
    };

    type __kernel_size_t = usize;
    type __kernel_ssize_t = isize;
    type __kernel_ptrdiff_t = isize;

    include!(env!("IPOIB_BINDINGS"));

    // SAFETY: a flexible array member has no bytes of its own.
    unsafe impl<T> Zeroable for __IncompleteArrayField<T> {}
    // SAFETY: a bit-field unit is plain storage bytes.
    unsafe impl<S: Zeroable> Zeroable for __BindgenBitfieldUnit<S> {}
}

const _: () = {
    // Both views of the types that cross between the crates' bindings uncast must agree.
    assert!(size_of::<bindings::notifier_block>() == size_of::<kernel::bindings::notifier_block>());
    // A pointer to one serves as a pointer to the other in lists of attributes.
    assert!(core::mem::offset_of!(bindings::device_attribute, attr) == 0);
};
