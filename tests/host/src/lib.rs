// SPDX-License-Identifier: GPL-2.0

//! The module's wire formats (`src/wire`) and state machines (`src/control`), compiled for the host as they
//! are, so that tests, fuzz targets and the simulator can use them.

#![no_std]
#![warn(missing_docs)]

#[path = "../../../src/control/mod.rs"]
pub mod control;
#[path = "../../../src/wire/mod.rs"]
pub mod wire;
