//! Address handles, and where packets come from.

use std::ffi::c_int;
use std::net::{Ipv4Addr, Ipv6Addr};

use rdmacore::abi;
use verbs::{AddressVector, Gid, Provider};

use crate::errors::{FORKED, code, null, number, say, set};
use crate::events::lock;
use crate::process::Process;
use crate::process::objects::{Ah, Context, Pd};

/// `IBV_WC_GRH`.
const WC_GRH: u32 = 1;
/// Bytes of the area before a datagram.
const GRH_BYTES: usize = 40;

/// The way that attributes name; none if the device has no such source.
pub(crate) fn way(attr: &abi::ibv_ah_attr, process: &Process) -> Option<AddressVector> {
    let Some(source) = process.gids.get(usize::from(attr.grh.sgid_index)) else {
        say(&format!("the device has no GID with index {}", attr.grh.sgid_index));
        return None;
    };
    let mut to = AddressVector::new(Gid(Ipv6Addr::from(attr.grh.dgid.raw)));
    if attr.is_global == 0 {
        say(&"RoCE needs a GID: give the program the index of one (often -g 0)");
        return None;
    }
    if attr.grh.hop_limit > 1 {
        to.hop_limit = attr.grh.hop_limit;
    }
    to.traffic_class = attr.grh.traffic_class;
    Some(to.from_source(Some(*source).filter(|source| *source != process.attr.gid)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah(pd: *mut Pd, attr: *mut abi::ibv_ah_attr) -> *mut abi::ibv_ah {
    // SAFETY: a PD that is there, its open context, and the attributes.
    let (context, attr) = unsafe { ((*pd).public.context, &*attr) };
    // SAFETY: as above.
    let process = unsafe { Context::of(context) }.process;
    let Some(to) = way(attr, process).filter(|_| attr.port_num == 1) else { return null(libc::EINVAL) };
    let Some(mut held) = process.nic() else { return null(FORKED) };
    match held.nic.create_ah(&to) {
        Ok(id) => {
            // SAFETY: as above.
            *lock(unsafe { &(*pd).users }) += 1;
            Box::into_raw(Box::new(Ah { context, pd, handle: id.0, id })).cast()
        }
        Err(error) => null(number(&error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_ah(ah: *mut Ah) -> c_int {
    // SAFETY: a handle that is there, and its open context.
    let (context, id) = unsafe { (Context::of((*ah).context), (*ah).id) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    let gone = code(held.nic.destroy_ah(id));
    if gone == 0 {
        // SAFETY: as above; the program does not use it any more.
        unsafe {
            *lock(&(*(*ah).pd).users) -= 1;
            drop(Box::from_raw(ah));
        }
    }
    gone
}

/// Source and destination of a datagram by the area before it: an IPv6 header, or an IPv4 header in its second half.
fn ends(grh: &[u8; GRH_BYTES]) -> Option<(Gid, Gid)> {
    let address = |at: usize| -> Option<[u8; 4]> { grh.get(at..at + 4)?.try_into().ok() };
    let wide = |at: usize| -> Option<[u8; 16]> { grh.get(at..at + 16)?.try_into().ok() };
    if grh[0] >> 4 == 6 {
        return Some((Gid(Ipv6Addr::from(wide(8)?)), Gid(Ipv6Addr::from(wide(24)?))));
    }
    let mapped = |octets: [u8; 4]| Gid(Ipv4Addr::from(octets).to_ipv6_mapped());
    (grh[20] >> 4 == 4).then_some((mapped(address(32)?), mapped(address(36)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_init_ah_from_wc(
    context: *mut abi::ibv_context,
    port: u8,
    wc: *mut abi::ibv_wc,
    grh: *mut [u8; GRH_BYTES],
    attr: *mut abi::ibv_ah_attr,
) -> c_int {
    // SAFETY: an open context, a completion, and the area before the datagram, which the program received.
    let (process, flags) = unsafe { (Context::of(context).process, (*wc).wc_flags) };
    let found = match flags & WC_GRH {
        0 => None,
        // SAFETY: as above.
        _ => ends(unsafe { &*grh }),
    };
    let index = found.and_then(|(_, own)| process.gids.iter().position(|gid| *gid == own));
    let (Some((from, _)), Some(Ok(sgid_index))) = (found, index.map(u8::try_from)) else {
        set(libc::EINVAL);
        return -1;
    };
    let grh = abi::ibv_global_route {
        dgid: abi::ibv_gid { raw: from.0.octets() },
        sgid_index,
        hop_limit: 64,
        ..abi::ibv_global_route::default()
    };
    // SAFETY: room for the attributes.
    unsafe { attr.write(abi::ibv_ah_attr { grh, is_global: 1, port_num: port, ..abi::ibv_ah_attr::default() }) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_ah_from_wc(
    pd: *mut Pd,
    wc: *mut abi::ibv_wc,
    grh: *mut [u8; GRH_BYTES],
    port: u8,
) -> *mut abi::ibv_ah {
    let mut attr = abi::ibv_ah_attr::default();
    // SAFETY: as asked for in both.
    unsafe {
        if ibv_init_ah_from_wc((*pd).public.context, port, wc, grh, &raw mut attr) != 0 {
            return std::ptr::null_mut();
        }
        ibv_create_ah(pd, &raw mut attr)
    }
}

/// The link address of a peer is the kernel's business: packets leave through sockets.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_resolve_eth_l2_from_gid(
    _context: *mut abi::ibv_context,
    _attr: *mut abi::ibv_ah_attr,
    _mac: *mut u8,
    _vlan: *mut u16,
) -> c_int {
    libc::EOPNOTSUPP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_a_datagram_are_in_the_area_before_it() {
        let mut grh = [0; GRH_BYTES];
        assert_eq!(ends(&grh), None);
        grh[20] = 0x45;
        grh[32..40].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 9]);
        let of = |text: &str| Gid::from(text.parse::<std::net::IpAddr>().unwrap());
        assert_eq!(ends(&grh), Some((of("192.0.2.1"), of("192.0.2.9"))));
        grh[0] = 0x60;
        grh[8..24].copy_from_slice(&"2001:db8::1".parse::<Ipv6Addr>().unwrap().octets());
        grh[24..40].copy_from_slice(&"2001:db8::2".parse::<Ipv6Addr>().unwrap().octets());
        assert_eq!(ends(&grh), Some((of("2001:db8::1"), of("2001:db8::2"))));
    }
}
