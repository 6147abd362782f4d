//! Protection domains and registered memory.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Mutex;

use rdmacore::abi;
use rustix::io::Errno;
use verbs::{Access, MrInit, Provider, Region};

use crate::errors::{FORKED, code, null, number, say};
use crate::events::lock;
use crate::process::objects::{Context, Mr, Pd};

/// Access flags that are no right but a wish which memory of a program meets anyway: relaxed order
/// (`IBV_ACCESS_OPTIONAL_RANGE`) and huge pages.
const WISHES: c_uint = 0x3ff0_0000 | 1 << 7;
/// `IBV_ACCESS_ZERO_BASED`: addresses run from 0.
const ZERO_BASED: c_uint = 1 << 5;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut abi::ibv_context) -> *mut abi::ibv_pd {
    // SAFETY: an open context.
    let Some(mut held) = (unsafe { Context::of(context) }).process.nic() else { return null(FORKED) };
    match held.nic.alloc_pd() {
        Ok(id) => {
            let public = abi::ibv_pd { context, handle: id.0 };
            Box::into_raw(Box::new(Pd { public, id, users: Mutex::new(0) })).cast()
        }
        Err(error) => null(number(&error)),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    // SAFETY: a PD that is there.
    let (context, id, users) = unsafe { ((*pd).public.context, (*pd).id, *lock(&(*pd).users)) };
    if users > 0 {
        say(&"the protection domain has address handles or shared receive queues");
        return libc::EBUSY;
    }
    // SAFETY: the context of a PD is open.
    let Some(mut held) = (unsafe { Context::of(context) }).process.nic() else { return FORKED };
    if let Err(error) = held.nic.dealloc_pd(id) {
        return number(&error);
    }
    // SAFETY: nothing stands on it, and the program does not use it any more.
    drop(unsafe { Box::from_raw(pd) });
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut abi::ibv_mr {
    let Some(rights) = Access::from_bits(access & !WISHES & !ZERO_BASED) else {
        say(&format!("access flags {access:#x}: windows and on-demand paging are not there"));
        return null(libc::EOPNOTSUPP);
    };
    let iova = if access & ZERO_BASED == 0 { iova } else { 0 };
    let is_written = rights.contains(Access::LOCAL_WRITE);
    // SAFETY: the program gives this memory to the device.
    let region = match unsafe { Region::of_program(addr.expose_provenance(), length, is_written) } {
        Ok(region) => region,
        Err(error) => {
            say(&error);
            return null(error.raw_os_error().unwrap_or(libc::EINVAL));
        }
    };
    // As hardware pins them, the pages must be there, with these rights.
    if let Err(error) = probe(&region, is_written) {
        say(&error);
        return null(libc::EFAULT);
    }
    // SAFETY: a PD that is there, and its open context.
    let (context, id) = unsafe { ((*pd).public.context, (*pd).id) };
    // SAFETY: as above.
    let Some(mut held) = (unsafe { Context::of(context) }).process.nic() else { return null(FORKED) };
    let init = MrInit { pd: id, region: &region, offset: 0, len: length as u64, iova, access: rights };
    match held.nic.register(&init) {
        Ok(mr) => {
            let (lkey, rkey) = (mr.lkey.0, mr.rkey.0);
            let public = abi::ibv_mr { context, pd: pd.cast(), addr, length, handle: mr.id.0, lkey, rkey };
            Box::into_raw(Box::new(Mr { public, id: mr.id })).cast()
        }
        Err(error) => null(number(&error)),
    }
}

/// Whether first and last byte are there, and may be written where the device is to write.
fn probe(region: &Region, is_written: bool) -> Result<(), Errno> {
    let page = rustix::param::page_size();
    for offset in [0, region.len() - 1] {
        region.read(offset, &mut [0]).map_err(|_| Errno::FAULT)?;
        if is_written {
            let at = region.as_ptr().addr() + usize::try_from(offset).unwrap_or(0);
            let start = std::ptr::with_exposed_provenance_mut::<c_void>(at & !(page - 1));
            // SAFETY: it changes no byte: the page is there, as a look at it showed, and becomes one that can be written.
            match unsafe { rustix::mm::madvise(start, page, rustix::mm::Advice::LinuxPopulateWrite) } {
                // A kernel before 5.14 does not know it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut abi::ibv_mr {
    // SAFETY: as asked for there.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, iova, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(pd: *mut Pd, addr: *mut c_void, length: usize, access: c_int) -> *mut abi::ibv_mr {
    // SAFETY: as asked for there.
    unsafe { ibv_reg_mr_iova2(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut Mr) -> c_int {
    // SAFETY: an MR that is there, and its open context.
    let (context, id) = unsafe { (Context::of((*mr).public.context), (*mr).id) };
    let Some(mut held) = context.process.nic() else { return FORKED };
    let gone = code(held.nic.dereg_mr(id));
    if gone == 0 {
        // SAFETY: the program does not use it any more.
        drop(unsafe { Box::from_raw(mr) });
    }
    gone
}
