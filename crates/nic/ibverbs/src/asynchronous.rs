//! Asynchronous events.

use std::ffi::{c_int, c_void};

use rdmacore::abi;

use crate::errors::set;
use crate::process::event_type as t;
use crate::process::objects::{AsyncItem, Context, Cq, Qp, Srq};

/// What an event is of.
enum Element {
    Cq(*const Cq),
    Qp(*const Qp),
    Srq(*const Srq),
    /// A port, or the device.
    Other,
}

fn element(kind: u32, element: usize) -> Element {
    match kind {
        t::CQ_ERR => Element::Cq(element as *const Cq),
        t::SRQ_LIMIT_REACHED => Element::Srq(element as *const Srq),
        t::QP_FATAL..=t::SQ_DRAINED | t::QP_LAST_WQE_REACHED => Element::Qp(element as *const Qp),
        _ => Element::Other,
    }
}

/// Counts an event as taken.
///
/// # Safety
///
/// The object of the event is there.
unsafe fn note(item: &AsyncItem) {
    // SAFETY: as the caller says.
    unsafe {
        match element(item.kind, item.element) {
            Element::Cq(cq) => (*cq).asynchronous.on_taken(),
            Element::Qp(qp) => (*qp).asynchronous.on_taken(),
            Element::Srq(srq) => (*srq).asynchronous.on_taken(),
            Element::Other => {}
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut abi::ibv_context,
    event: *mut abi::ibv_async_event,
) -> c_int {
    // SAFETY: an open context; an object whose event waits is there until its events were purged.
    match unsafe { Context::of(context).events.take(|item| note(item)) } {
        Ok(AsyncItem { element, kind }) => {
            // SAFETY: room for an event.
            unsafe { event.write(abi::ibv_async_event { element: element as *mut c_void, event_type: kind }) };
            0
        }
        Err(error) => {
            set(error.raw_os_error());
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(event: *mut abi::ibv_async_event) {
    // SAFETY: an event that was taken; its object stays until this.
    unsafe {
        match element((*event).event_type, (*event).element as usize) {
            Element::Cq(cq) => (*cq).asynchronous.acknowledge(1),
            Element::Qp(qp) => (*qp).asynchronous.acknowledge(1),
            Element::Srq(srq) => (*srq).asynchronous.acknowledge(1),
            Element::Other => {}
        }
    }
}
