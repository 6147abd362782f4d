//! The device list, and what device, port and GID table say of themselves.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::Mutex;

use rdmacore::abi;
use verbs::PathMtu;

use crate::errors::{null, set};
use crate::events::lock;
use crate::process::Process;
use crate::process::objects::{Context, Device};

/// The one device.
const NAME: &str = "soft0";
/// No vendor: 0x15b3 and 0 make libraries of vendors, and UCX, take it for what it is not.
const VENDOR: u32 = 0x5a5a;
/// Ethernet as a link layer; 10 Gbit/s by 4 lanes; link up. The numbers are those of the header.
const LINK_LAYER_ETHERNET: u8 = 2;
const SPEED_10_GBIT: u8 = 4;
const WIDTH_4X: u8 = 2;
const PHYS_LINK_UP: u8 = 5;
/// `IBV_PORT_CM_SUP` and `IBV_PORT_IP_BASED_GIDS`.
const PORT_CAPS: u32 = 1 << 16 | 1 << 26;
/// `IBV_DEVICE_RC_RNR_NAK_GEN`, `IBV_DEVICE_SYS_IMAGE_GUID`, `IBV_DEVICE_SRQ_RESIZE` is not there,
/// `IBV_DEVICE_PORT_ACTIVE_EVENT`.
const DEVICE_CAPS: u32 = 1 << 12 | 1 << 11 | 1 << 10;
/// `IBV_ATOMIC_HCA`: atomic towards other operations of the device.
const ATOMIC_HCA: u32 = 1;
/// The default partition.
const PKEY: u16 = 0xffff;
/// `enum ibv_gid_type` of the extended interface, and of the private one.
const GID_ROCE_V2: u32 = 2;
const GID_ROCE_V2_PRIVATE: u32 = 1;
/// Bytes of `ibv_gid_entry`.
const ENTRY_BYTES: usize = 32;
/// Bytes of `ibv_device_attr_ex` as of rdma-core 44, and where a field of it is.
const ATTR_EX_BYTES: usize = 400;
const ATTR_EX_CAPS: usize = 280;
const ATTR_EX_PORTS: usize = 396;

struct Shown(Box<Device>);
// SAFETY: what a device says of itself does not change.
unsafe impl Send for Shown {}

static DEVICE: Mutex<Option<Shown>> = Mutex::new(None);

fn text<const N: usize>(of: &str) -> [u8; N] {
    let mut bytes = [0; N];
    bytes[..of.len()].copy_from_slice(of.as_bytes());
    bytes
}

/// The device. It lives for ever, as programs may keep a pointer to it.
fn device() -> *mut Device {
    let mut shown = lock(&DEVICE);
    let device = shown.get_or_insert_with(|| {
        Shown(Box::new(Device {
            ops: [0; 2],
            node_type: 1,
            transport_type: 0,
            name: text(NAME),
            dev_name: text("uverbs0"),
            dev_path: text("/sys/class/infiniband_verbs/uverbs0"),
            ibdev_path: text("/sys/class/infiniband/soft0"),
            beyond: [0; 1024],
        }))
    });
    &raw mut *device.0
}

/// Big-endian: the first octets of a name, and those of the machine's addresses need not be told.
const fn guid() -> u64 {
    0x025a_00ff_fe00_0001_u64.to_be()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut Device {
    // SAFETY: plain allocation, of room for two pointers, the last of which stays null.
    let list = unsafe { libc::calloc(2, size_of::<*mut Device>()) }.cast::<*mut Device>();
    if list.is_null() {
        return null(libc::ENOMEM);
    }
    // SAFETY: it has room for two; the program gives room for the count or null.
    unsafe {
        *list = device();
        if !count.is_null() {
            *count = 1;
        }
    }
    list
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut Device) {
    // SAFETY: it came from `ibv_get_device_list`.
    unsafe { libc::free(list.cast()) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut Device) -> *const c_char {
    // SAFETY: it came from `ibv_get_device_list`, and the name ends with a zero.
    unsafe { (*device).name.as_ptr().cast() }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_device: *mut Device) -> u64 {
    guid()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_index(_device: *mut Device) -> c_int {
    0
}

/// `enum ibv_mtu`.
pub(crate) fn mtu_number(mtu: PathMtu) -> u32 {
    PathMtu::ALL.iter().zip(1..).find(|(known, _)| **known == mtu).map_or(1, |(_, number)| number)
}

fn count(n: u32) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

fn describe(process: &Process) -> abi::ibv_device_attr {
    let nic = &process.attr;
    let limits = softnic::SoftNicConfig::new(nic.gid.ip()).limits;
    let reads = c_int::from(nic.max_rd_atomic);
    abi::ibv_device_attr {
        fw_ver: text(env!("CARGO_PKG_VERSION")),
        node_guid: guid(),
        sys_image_guid: guid(),
        max_mr_size: u64::MAX >> 1,
        page_size_cap: !0xfff,
        vendor_id: VENDOR,
        vendor_part_id: 1,
        hw_ver: 1,
        max_qp: count(nic.max_qp),
        max_qp_wr: count(nic.max_qp_wr),
        device_cap_flags: DEVICE_CAPS,
        max_sge: count(nic.max_sge),
        max_sge_rd: count(nic.max_sge),
        max_cq: count(limits.max_cq),
        max_cqe: count(nic.max_cqe),
        max_mr: count(nic.max_mr),
        max_pd: count(nic.max_mr / 2),
        max_qp_rd_atom: reads,
        max_ee_rd_atom: 0,
        max_res_rd_atom: reads.saturating_mul(count(nic.max_qp)),
        max_qp_init_rd_atom: reads,
        max_ee_init_rd_atom: 0,
        atomic_cap: ATOMIC_HCA,
        of_none: [0; 5],
        max_mcast_grp: 0,
        max_mcast_qp_attach: 0,
        max_total_mcast_qp_attach: 0,
        max_ah: count(limits.max_ah),
        of_fmr: [0; 2],
        max_srq: count(limits.max_srq),
        max_srq_wr: count(nic.max_srq_wr),
        max_srq_sge: count(nic.max_sge),
        max_pkeys: 1,
        local_ca_ack_delay: 15,
        phys_port_cnt: 1,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(context: *mut abi::ibv_context, attr: *mut abi::ibv_device_attr) -> c_int {
    // SAFETY: an open context, and room for the attributes.
    unsafe { attr.write(describe(Context::of(context).process)) };
    0
}

pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut abi::ibv_context,
    _input: *const u8,
    attr: *mut u8,
    bytes: usize,
) -> c_int {
    let mut whole = [0_u8; ATTR_EX_BYTES];
    // SAFETY: an open context; the structure is plain bytes, of which all are written.
    let described = unsafe {
        let described = describe(Context::of(context).process);
        std::mem::transmute::<abi::ibv_device_attr, [u8; size_of::<abi::ibv_device_attr>()]>(described)
    };
    if bytes < described.len() {
        return libc::EINVAL;
    }
    whole[..described.len()].copy_from_slice(&described);
    whole[ATTR_EX_CAPS..ATTR_EX_CAPS + 8].copy_from_slice(&u64::from(DEVICE_CAPS).to_ne_bytes());
    whole[ATTR_EX_PORTS..].copy_from_slice(&1_u32.to_ne_bytes());
    // SAFETY: the program gives room for `bytes`.
    unsafe {
        attr.write_bytes(0, bytes);
        attr.copy_from_nonoverlapping(whole.as_ptr(), bytes.min(ATTR_EX_BYTES));
    }
    0
}

fn port(process: &Process) -> abi::ibv_port_attr {
    let mtu = mtu_number(process.attr.mtu);
    abi::ibv_port_attr {
        state: abi::PORT_ACTIVE,
        max_mtu: mtu_number(PathMtu::Mtu4096),
        active_mtu: mtu,
        gid_tbl_len: count(u32::try_from(process.gids.len()).unwrap_or(u32::MAX)),
        port_cap_flags: PORT_CAPS,
        max_msg_sz: process.attr.max_msg_bytes,
        pkey_tbl_len: 1,
        max_vl_num: 1,
        active_width: WIDTH_4X,
        active_speed: SPEED_10_GBIT,
        phys_state: PHYS_LINK_UP,
        link_layer: LINK_LAYER_ETHERNET,
        ..abi::ibv_port_attr::default()
    }
}

pub(crate) unsafe extern "C" fn query_port(
    context: *mut abi::ibv_context,
    number: u8,
    attr: *mut abi::ibv_port_attr,
    bytes: usize,
) -> c_int {
    if number != 1 {
        return libc::EINVAL;
    }
    // SAFETY: an open context, and room for `bytes`: programs of different releases have structures of different lengths.
    unsafe {
        let whole = port(Context::of(context).process);
        attr.cast::<u8>().write_bytes(0, bytes);
        let known = bytes.min(size_of_val(&whole));
        attr.cast::<u8>().copy_from_nonoverlapping((&raw const whole).cast(), known);
    }
    0
}

/// The function of programs that were built with a header in which the structure ends after its link layer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    context: *mut abi::ibv_context,
    number: u8,
    attr: *mut abi::ibv_port_attr,
) -> c_int {
    // SAFETY: as asked for here, with room up to the link layer and two bytes behind it.
    unsafe { query_port(context, number, attr, 48) }
}

unsafe fn gid_at(context: *mut abi::ibv_context, index: u32) -> Option<[u8; 16]> {
    // SAFETY: an open context.
    let gids = unsafe { &Context::of(context).process.gids };
    usize::try_from(index).ok().and_then(|index| gids.get(index)).map(|gid| gid.0.octets())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut abi::ibv_context,
    port: u8,
    index: c_int,
    gid: *mut [u8; 16],
) -> c_int {
    // SAFETY: an open context.
    let found = u32::try_from(index).ok().and_then(|index| unsafe { gid_at(context, index) });
    match found.filter(|_| port == 1) {
        Some(found) => {
            // SAFETY: room for a GID.
            unsafe { gid.write(found) };
            0
        }
        None => {
            set(libc::EINVAL);
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid_type(
    context: *mut abi::ibv_context,
    port: u8,
    index: u32,
    kind: *mut u32,
) -> c_int {
    // SAFETY: an open context.
    if port != 1 || unsafe { gid_at(context, index) }.is_none() {
        set(libc::EINVAL);
        return -1;
    }
    // SAFETY: room for a number.
    unsafe { kind.write(GID_ROCE_V2_PRIVATE) };
    0
}

fn entry(gid: [u8; 16], index: u32) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..16].copy_from_slice(&gid);
    // Index, port, kind, and the number of the interface, which stays 0: it is asked for by nobody who has no kernel device.
    for (place, value) in entry[16..].chunks_exact_mut(4).zip([index, 1, GID_ROCE_V2, 0]) {
        place.copy_from_slice(&value.to_ne_bytes());
    }
    entry
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_ex(
    context: *mut abi::ibv_context,
    port: u32,
    index: u32,
    to: *mut u8,
    flags: u32,
    bytes: usize,
) -> c_int {
    if flags != 0 || port != 1 || bytes < ENTRY_BYTES {
        return libc::EINVAL;
    }
    // SAFETY: an open context, and room for an entry.
    unsafe {
        let Some(gid) = gid_at(context, index) else { return libc::ENODATA };
        to.copy_from_nonoverlapping(entry(gid, index).as_ptr(), ENTRY_BYTES);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ibv_query_gid_table(
    context: *mut abi::ibv_context,
    to: *mut u8,
    room: usize,
    flags: u32,
    bytes: usize,
) -> isize {
    if flags != 0 || bytes < ENTRY_BYTES {
        return -(libc::EINVAL as isize);
    }
    let mut written = 0;
    while written < room {
        let index = u32::try_from(written).unwrap_or(u32::MAX);
        // SAFETY: an open context, and room for `room` entries of `bytes`.
        unsafe {
            let Some(gid) = gid_at(context, index) else { break };
            to.add(written * bytes).copy_from_nonoverlapping(entry(gid, index).as_ptr(), ENTRY_BYTES);
        }
        written += 1;
    }
    isize::try_from(written).unwrap_or(isize::MAX)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_pkey(
    _context: *mut abi::ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if port != 1 || index != 0 {
        set(libc::EINVAL);
        return -1;
    }
    // SAFETY: room for a key.
    unsafe { pkey.write(PKEY.to_be()) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_pkey_index(_context: *mut abi::ibv_context, port: u8, pkey: u16) -> c_int {
    if port == 1 && u16::from_be(pkey) & 0x7fff == PKEY & 0x7fff {
        return 0;
    }
    set(libc::EINVAL);
    -1
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// Of the files that programs ask this function for there are two: what board it is, and which interface rdma_cm has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    _folder: *const c_char,
    file: *const c_char,
    to: *mut u8,
    room: usize,
) -> c_int {
    // SAFETY: the name of a file, which ends with a zero.
    let text = match unsafe { CStr::from_ptr(file) }.to_bytes() {
        b"board_id" => "raas",
        b"class/misc/rdma_cm/abi_version" => "4",
        _ => return -1,
    };
    if room <= text.len() {
        return -1;
    }
    // SAFETY: room for the text and a zero behind it, just checked.
    unsafe {
        to.copy_from_nonoverlapping(text.as_ptr(), text.len());
        to.add(text.len()).write(0);
    }
    count(u32::try_from(text.len()).unwrap_or(0))
}

/// The same of one device's folder.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    _to: *mut u8,
    _room: usize,
    _sysfs_device: *mut u8,
    _name: *const c_char,
) -> c_int {
    -1
}

/// The program opens the device by another process's descriptor, of which there are none.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_import_device(_descriptor: c_int) -> *mut abi::ibv_context {
    set(libc::EOPNOTSUPP);
    null_mut()
}
