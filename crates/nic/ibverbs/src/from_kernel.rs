//! Attributes as the kernel's interface has them, which librdmacm reads from it and hands to this library.

use rdmacore::abi;

/// `struct ib_uverbs_ah_attr`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelAh {
    dgid: [u64; 2],
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
    reserved: u8,
}

/// `struct ib_uverbs_qp_attr`.
#[repr(C)]
pub struct KernelQp {
    mask: u32,
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    access: u32,
    ah: KernelAh,
    alternate: KernelAh,
    cap: abi::ibv_qp_cap,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    reserved: [u8; 5],
}

/// `struct ib_user_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KernelPath {
    gids: [[u8; 16]; 2],
    lids: [u16; 2],
    raw_traffic: u32,
    flow_label: u32,
    reversible: u32,
    mtu: u32,
    pkey: u16,
    hop_limit: u8,
    traffic_class: u8,
    numb_path: u8,
    sl: u8,
    mtu_selector: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

/// `struct ibv_sa_path_rec`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct SaPath {
    gids: [abi::ibv_gid; 2],
    lids: [u16; 2],
    raw_traffic: u32,
    flow_label: u32,
    hop_limit: u8,
    traffic_class: u8,
    reversible: u32,
    numb_path: u8,
    pkey: u16,
    sl: u8,
    mtu_selector: u8,
    mtu: u8,
    rate_selector: u8,
    rate: u8,
    packet_life_time_selector: u8,
    packet_life_time: u8,
    preference: u8,
}

const _: () = assert!(size_of::<KernelAh>() == 32 && size_of::<KernelQp>() == 144 && size_of::<KernelPath>() == 64);
const _: () = assert!(size_of::<SaPath>() == 64);

fn ah(of: &KernelAh) -> abi::ibv_ah_attr {
    let mut raw = [0; 16];
    raw[..8].copy_from_slice(&of.dgid[0].to_ne_bytes());
    raw[8..].copy_from_slice(&of.dgid[1].to_ne_bytes());
    abi::ibv_ah_attr {
        grh: abi::ibv_global_route {
            dgid: abi::ibv_gid { raw },
            flow_label: of.flow_label,
            sgid_index: of.sgid_index,
            hop_limit: of.hop_limit,
            traffic_class: of.traffic_class,
        },
        dlid: of.dlid,
        sl: of.sl,
        src_path_bits: of.src_path_bits,
        static_rate: of.static_rate,
        is_global: of.is_global,
        port_num: of.port_num,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_ah_attr_from_kern(to: *mut abi::ibv_ah_attr, from: *const KernelAh) {
    // SAFETY: attributes, and room for them.
    unsafe { to.write(ah(&*from)) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_qp_attr_from_kern(to: *mut abi::ibv_qp_attr, from: *const KernelQp) {
    // SAFETY: attributes, which live during the call.
    let of = unsafe { &*from };
    let attr = abi::ibv_qp_attr {
        qp_state: of.qp_state,
        cur_qp_state: of.cur_qp_state,
        path_mtu: of.path_mtu,
        path_mig_state: of.path_mig_state,
        qkey: of.qkey,
        rq_psn: of.rq_psn,
        sq_psn: of.sq_psn,
        dest_qp_num: of.dest_qp_num,
        qp_access_flags: of.access,
        cap: of.cap,
        ah_attr: ah(&of.ah),
        alt_ah_attr: ah(&of.alternate),
        pkey_index: of.pkey_index,
        alt_pkey_index: of.alt_pkey_index,
        en_sqd_async_notify: of.en_sqd_async_notify,
        sq_draining: of.sq_draining,
        max_rd_atomic: of.max_rd_atomic,
        max_dest_rd_atomic: of.max_dest_rd_atomic,
        min_rnr_timer: of.min_rnr_timer,
        port_num: of.port_num,
        timeout: of.timeout,
        retry_cnt: of.retry_cnt,
        rnr_retry: of.rnr_retry,
        alt_port_num: of.alt_port_num,
        alt_timeout: of.alt_timeout,
        rate_limit: 0,
    };
    // SAFETY: room for attributes.
    unsafe { to.write(attr) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_from_kern(to: *mut SaPath, from: *const KernelPath) {
    // SAFETY: a path, and room for one.
    unsafe {
        let of = *from;
        to.write(SaPath {
            gids: of.gids.map(|raw| abi::ibv_gid { raw }),
            lids: of.lids,
            raw_traffic: of.raw_traffic,
            flow_label: of.flow_label,
            hop_limit: of.hop_limit,
            traffic_class: of.traffic_class,
            reversible: of.reversible,
            numb_path: of.numb_path,
            pkey: of.pkey,
            sl: of.sl,
            mtu_selector: of.mtu_selector,
            mtu: of.mtu.to_le_bytes()[0],
            rate_selector: of.rate_selector,
            rate: of.rate,
            packet_life_time_selector: of.packet_life_time_selector,
            packet_life_time: of.packet_life_time,
            preference: of.preference,
        });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_copy_path_rec_to_kern(to: *mut KernelPath, from: *const SaPath) {
    // SAFETY: a path, and room for one.
    unsafe {
        let of = *from;
        to.write(KernelPath {
            gids: of.gids.map(|gid| gid.raw),
            lids: of.lids,
            raw_traffic: of.raw_traffic,
            flow_label: of.flow_label,
            reversible: of.reversible,
            mtu: of.mtu.into(),
            pkey: of.pkey,
            hop_limit: of.hop_limit,
            traffic_class: of.traffic_class,
            numb_path: of.numb_path,
            sl: of.sl,
            mtu_selector: of.mtu_selector,
            rate_selector: of.rate_selector,
            rate: of.rate,
            packet_life_time_selector: of.packet_life_time_selector,
            packet_life_time: of.packet_life_time,
            preference: of.preference,
        });
    }
}
