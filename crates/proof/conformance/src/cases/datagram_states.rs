//! Datagram queue pairs in other states than RTS, and faults of their owner: as those of unreliable connections.

use super::cases;
use super::unreliable_states::{
    drained_sends_nothing, error_flushes_new_sends, error_flushes_receives, error_takes_nothing, no_send_before_rts,
    receive_without_local_write, receives_in_rtr, reset_and_again, reset_forgets, send_with_wrong_lkey,
};
use crate::Options;

cases!("ud_state" of Options::datagrams, unreliable:
    no_send_before_rts, receives_in_rtr, error_flushes_receives, error_flushes_new_sends, error_takes_nothing, reset_forgets,
    reset_and_again, drained_sends_nothing, send_with_wrong_lkey, receive_without_local_write,
);
