// SPDX-License-Identifier: GPL-2.0

//! The sending end of a connection, of which these models only need to whom it leads.

use crate::wire::qpn::Qpn;

/// A connection.
pub(crate) struct TxConn {
    pub(crate) qpn: Qpn,
}
