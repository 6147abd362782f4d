//! Commands to an engine. Each is the calls of the engine that carry it out, and has at most one answer.

use std::net::IpAddr;
use std::sync::Arc;

use control::{ChunkKind, Reason, RegionGrant, RegionRefusal};
use engine::{
    Admission, AppId, Attach, DatagramBind, Dial, Engine, IpNet, LaneAt, LanePath, LocalPlace, OpenId, OperationsOpen,
    Returned, RingSize, TENANT_PINNED, TenantPlace, TenantTerms,
};
use kernels::UserKernel;
use plane::{ClientId, LaneAnswer, LaneCommand, LinkPath, ProgramCommand, Refusal, RegionCommand};
use shm::Region;
use verbs::{Provider, Time, VerbsError};

use crate::Report;

/// Memory of a region as the driver has mapped it, or (for people) why it could not.
pub type Mapped = Result<Region, String>;

/// From the control plane to an engine.
#[derive(Debug)]
pub enum Command {
    /// Take a program in. Answered by [`Report::Attached`].
    Attach {
        /// Which.
        client: ClientId,
        /// What the engine is to know of it.
        program: Attach,
        /// What it brings along from a daemon before this one.
        returned: Option<Box<Returned>>,
    },
    /// End a program's session.
    Detach {
        /// The program.
        app: AppId,
        /// Why.
        reason: Reason,
    },
    /// Say to whose hosts a program may send.
    SetConnectTo {
        /// The program.
        app: AppId,
        /// Their networks; none: all that the configuration allows.
        networks: Option<Arc<[IpNet]>>,
    },
    /// The tenants of the policy, by place.
    SetTenants(Vec<TenantTerms>),
    /// A program is this tenant's.
    SetTenant {
        /// The program.
        app: AppId,
        /// The tenant.
        place: TenantPlace,
    },
    /// Take both directions of a set of rings: number in the session, and memory.
    AddChunks {
        /// The program.
        app: AppId,
        /// Of each ring.
        size: RingSize,
        /// What the program sends.
        tx: (u32, Region),
        /// What it receives.
        rx: (u32, Region),
    },
    /// There is no memory for rings.
    ChunksRefused {
        /// The program.
        app: AppId,
        /// Of each ring.
        size: RingSize,
        /// Why.
        reason: Reason,
    },
    /// What the control plane decided for a program.
    Program {
        /// The program.
        app: AppId,
        /// What.
        command: ProgramCommand,
        /// For [`ProgramCommand::AttachRegion`] and [`ProgramCommand::WriteRegion`].
        memory: Option<Mapped>,
    },
    /// The answer to [`engine::Event::ConnectRequest`].
    Admit {
        /// Which.
        open: OpenId,
        /// Whether the connection may be.
        answer: Result<Admission, Reason>,
    },
    /// What the control plane decided about a region.
    Region {
        /// What.
        command: RegionCommand,
        /// For a [`RegionCommand::Grant`] that registers.
        memory: Option<Mapped>,
    },
    /// Have a kernel run at a region from here on. Answered by [`Report::KernelInstalled`].
    Install {
        /// Who asked.
        client: ClientId,
        /// The program's name for it.
        request: u64,
        /// The region.
        region: u64,
        /// What the kernel is called.
        kernel: String,
        /// The kernel.
        module: UserKernel,
    },
    /// Run a kernel for a program of this host. Answered by [`engine::Event::KernelRan`].
    Run {
        /// The program.
        app: AppId,
        /// The program's name for it.
        request: u64,
        /// Where.
        places: Vec<LocalPlace>,
        /// What it is asked.
        bytes: Vec<u8>,
    },
    /// What the control plane decided for a lane.
    Lane {
        /// Its number.
        lane: u32,
        /// What.
        command: LaneCommand,
    },
    /// Say which stream a peer means. Answered by [`Report::StreamOfRoute`].
    StreamOfRoute {
        /// The peer.
        peer: IpAddr,
        /// Number of its offer.
        number: u64,
        /// The route.
        route: u32,
    },
    /// An operator wants a lane reset. Answered by [`Report::LaneWasReset`].
    ResetLane {
        /// Who asked.
        client: ClientId,
        /// The program's name for it.
        request: u64,
        /// The lane's peer.
        peer: IpAddr,
    },
}

/// Takes a program in, with what it brings along from a daemon before this one. `watch`: what the driver does for a
/// program before the engine serves it.
pub fn attach<P: Provider>(
    (now, engine, device): (Time, &mut Engine, &mut P),
    (client, program, returned): (ClientId, Attach, Option<Box<Returned>>),
    watch: impl FnOnce(AppId) -> Result<(), Reason>,
) -> Report {
    let result = engine.attach(program).and_then(|app| match watch(app) {
        Ok(()) => {
            returned.into_iter().for_each(|returned| engine.take_back(now, device, app, *returned));
            Ok(app)
        }
        Err(reason) => {
            engine.detach(now, device, app, reason);
            Err(reason)
        }
    });
    Report::Attached { client, result }
}

impl Command {
    /// Has an engine carry it out; its answer, if it has one, which comes behind every event that the engine made before.
    pub fn execute<P: Provider>(self, now: Time, engine: &mut Engine, device: &mut P) -> Option<Report> {
        match self {
            Self::Attach { client, program, returned } => {
                return Some(attach((now, engine, device), (client, program, returned), |_| Ok(())));
            }
            Self::Detach { app, reason } => engine.detach(now, device, app, reason),
            Self::SetConnectTo { app, networks } => engine.set_connect_to(app, networks),
            Self::SetTenants(terms) => engine.set_tenants(terms),
            Self::SetTenant { app, place } => engine.set_tenant(app, place),
            Self::AddChunks { app, size, tx, rx } => {
                let added = engine
                    .add_chunk(device, app, rx.0, ChunkKind::Rx, size, rx.1)
                    .and_then(|()| engine.add_chunk(device, app, tx.0, ChunkKind::Tx, size, tx.1));
                if let Err(error) = added {
                    tracing::warn!(?app, ?size, %error, "the device does not take more ring memory");
                    engine.chunks_refused(app, size, Reason::LocalLimit);
                }
            }
            Self::ChunksRefused { app, size, reason } => engine.chunks_refused(app, size, reason),
            Self::Program { app, command, memory } => {
                return for_program((now, engine, device), app, command, memory);
            }
            Self::Admit { open, answer } => engine.admit(now, device, open, answer),
            Self::Region { command, memory } => return for_region((now, engine, device), command, memory),
            Self::Install { client, request, region, kernel, module } => {
                let installed = engine.install_kernel(region, &kernel, module);
                let max = kernels::USER_KERNELS_MAX as u64;
                let what = "kernels of the region, or a built-in one has the name, of which".to_owned();
                let result = if installed { Ok(()) } else { Err(RegionRefusal::TooMany { what, used: max, max }) };
                return Some(Report::KernelInstalled { client, request, result });
            }
            Self::Run { app, request, places, bytes } => engine.run_kernel(app, request, places, &bytes),
            Self::Lane { lane, command } => return for_lane((now, engine, device), lane, command),
            Self::StreamOfRoute { peer, number, route } => {
                let stream = engine.stream_of_route(peer, route);
                return Some(Report::StreamOfRoute { peer, number, stream });
            }
            Self::ResetLane { client, request, peer } => {
                let found = engine.force_lane_error(device, peer);
                return Some(Report::LaneWasReset { client, request, found });
            }
        }
        None
    }
}

fn for_program<P: Provider>(
    (now, engine, device): (Time, &mut Engine, &mut P),
    app: AppId,
    command: ProgramCommand,
    memory: Option<Mapped>,
) -> Option<Report> {
    match command {
        ProgramCommand::Unlisten { port } => engine.unlisten(now, device, app, port),
        ProgramCommand::Accepted { port, connection } => engine.accepted(app, port, connection),
        ProgramCommand::Connect { request, connection, to, local, ring_bytes, kind } => {
            let dial = Dial { connection, to, local, ring_bytes, kind };
            engine.connect(now, device, app, request, dial);
        }
        ProgramCommand::CancelConnect { request } => engine.cancel_connect(now, device, app, request),
        ProgramCommand::Bind { request, socket, port, ring_bytes } => {
            engine.bind_datagram(app, request, DatagramBind { socket, port, ring_bytes });
        }
        ProgramCommand::OpenOperations { request, queue, ring_bytes } => {
            engine.open_operations(app, request, OperationsOpen { queue, ring_bytes });
        }
        ProgramCommand::Path { request, to } => engine.datagram_path(now, device, app, request, to),
        ProgramCommand::ChunkNotTaken { chunk } => engine.chunk_not_taken(now, device, app, chunk),
        ProgramCommand::OpenRegion { peer, open, grant, lane } => {
            let result = engine.open_region(device, app, LaneAt { peer, leased: lane }, grant);
            return Some(Report::RegionOpened { open, result });
        }
        ProgramCommand::WriteRegion { open, grant } => {
            let result = mapped(memory).map_err(|error| {
                tracing::warn!(open, error, "a region's memory is not there for its writer");
                Reason::LocalLimit
            });
            let result = result.and_then(|memory| engine.write_region(app, memory, grant));
            return Some(Report::RegionOpened { open, result });
        }
        ProgramCommand::NoticesInto { region, queue } => engine.notices_into(now, app, region, queue),
        ProgramCommand::OpenNotifier { open, region, bytes } => {
            return Some(Report::RegionOpened { open, result: engine.open_notifier(app, region, bytes) });
        }
        ProgramCommand::CloseRegion { handle, is_fenced } => engine.close_region(app, handle, is_fenced),
        ProgramCommand::AttachRegion { number, writable, .. } => {
            let attached = mapped(memory).map_err(|error| (error, Reason::LocalLimit)).and_then(|memory| {
                engine.attach_local_region(device, app, number, &memory, writable).map_err(|error| {
                    let is_tenants = matches!(error, VerbsError::Full { what: TENANT_PINNED, .. });
                    (error.to_string(), if is_tenants { Reason::TenantLimit } else { Reason::LocalLimit })
                })
            });
            let result = attached.map_err(|(error, reason)| {
                tracing::warn!(error, "a region cannot be local memory of a program");
                RegionRefusal::Reason(reason)
            });
            return Some(Report::RegionAttached { app, number, result });
        }
        ProgramCommand::DetachRegion { number } => engine.detach_local_region(app, number),
    }
    None
}

/// What a driver says beside a command that needs memory.
fn mapped(memory: Option<Mapped>) -> Mapped {
    memory.unwrap_or_else(|| Err("the region has no memory".into()))
}

fn for_region<P: Provider>(
    (now, engine, device): (Time, &mut Engine, &mut P),
    command: RegionCommand,
    memory: Option<Mapped>,
) -> Option<Report> {
    match command {
        RegionCommand::Grant { region, epoch, register, writer, peer, open, lane } => {
            let registered = match register {
                None => Ok(()),
                Some(access) => mapped(memory).and_then(|memory| {
                    engine.register_region(device, region, epoch, memory, access).map_err(|error| error.to_string())
                }),
            };
            let limit = || RegionRefusal::Reason(Reason::LocalLimit);
            let result = match registered {
                Ok(()) if lane.is_some_and(|lane| !engine.expect_leased_lane(peer, lane)) => {
                    tracing::warn!(%peer, ?lane, "no place for a leased lane: see `leased_lanes_max`");
                    Err(limit())
                }
                Ok(()) => {
                    let granted = match writer {
                        Some(access) => {
                            let granted = engine.grant_writer(device, region, peer, access);
                            granted.inspect_err(|error| tracing::warn!(region, %error, "it gets no writer")).ok()
                        }
                        None => engine.grant_region(device, region, peer),
                    };
                    granted.map(|grant| RegionGrant { epoch, ..grant }).ok_or_else(limit)
                }
                Err(error) => {
                    tracing::warn!(region, error, "the device does not take a region's memory");
                    Err(limit())
                }
            };
            // What is registered is granted to somebody.
            let not_registered = (register.is_some() && result.is_err()).then_some(region);
            if not_registered.is_some() {
                engine.deregister_region(device, region, epoch);
            }
            return Some(Report::RegionGranted { peer, open, result, not_registered });
        }
        RegionCommand::EndLane { peer, lane, reason } => {
            engine.end_leased_lane(now, device, LaneAt::new(peer, lane), reason);
        }
        RegionCommand::Fence { region } => engine.fence_region(device, region),
        RegionCommand::Ungrant { region, peer } => engine.ungrant_region(region, peer),
        RegionCommand::Deregister { region, epoch } => {
            engine.deregister_region(device, region, epoch);
            return Some(Report::RegionDeregistered { region });
        }
        RegionCommand::Forget { region } => engine.forget_region(region),
        RegionCommand::Halt { region, peer } => engine.halt_region(region, peer),
        RegionCommand::Stop { peer, region, epoch } => engine.stop_region(peer, region, epoch),
    }
    None
}

fn for_lane<P: Provider>(
    (now, engine, device): (Time, &mut Engine, &mut P),
    lane: u32,
    command: LaneCommand,
) -> Option<Report> {
    let at = |peer| LaneAt::new(peer, lane);
    let (peer, answer) = match command {
        LaneCommand::Offer { peer, round, path } => {
            let path = path.map(|LinkPath { own, peer }| LanePath { own, peer });
            let result = engine.lane_offer_over(device, at(peer), path);
            let result = result.map_err(|e| Refusal::of_lane(&e, Reason::LocalLimit));
            (peer, LaneAnswer::Offered { round, result })
        }
        LaneCommand::Accept { peer, round, offer } => {
            let result = engine.lane_accept(device, at(peer), &offer);
            let result = result.map_err(|e| Refusal::of_lane(&e, Reason::LaneFailed));
            (peer, LaneAnswer::Accepted { round, result })
        }
        LaneCommand::TellRoutes { peer, round } => {
            let routes = engine.lane_routes(at(peer));
            let done = routes.is_none() && engine.lane_goes_on(at(peer));
            (peer, LaneAnswer::RoutesTold { round, routes, done })
        }
        LaneCommand::TakeRoutes { peer, round, routes } => {
            let taken = engine.lane_take_routes(now, device, at(peer), &routes);
            (peer, LaneAnswer::RoutesTaken { round, result: taken.map(|()| engine.lane_goes_on(at(peer))) })
        }
        LaneCommand::Reset { peer } => {
            engine.lane_reset(now, device, at(peer));
            return None;
        }
        LaneCommand::Rest { peer } => {
            engine.lane_rest(now, device, at(peer));
            return None;
        }
        LaneCommand::Ready { peer } => {
            engine.lane_ready(now, device, at(peer));
            return None;
        }
        LaneCommand::Lost { peer, reason } => {
            engine.lane_lost(now, device, at(peer), reason);
            return None;
        }
        LaneCommand::PeerSilent { peer, silent } => {
            engine.peer_silent(now, peer, silent);
            return None;
        }
    };
    Some(Report::Lane { peer, lane, answer })
}
