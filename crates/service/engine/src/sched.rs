//! Deficit round robin over what has something to send on one lane: over tenants, over the applications of each, and
//! over the connections of each of these; and in the same way over the datagram sockets of a host.
//!
//! Owns the order of turns. It must never look at connections that are not ready, and holds keys, not indices: a
//! connection that went away while it waited is skipped by its stale key.
//!
//! In its turn a tenant may send as many quanta of bytes as its weight says, an application one quantum, and so may each
//! of its connections among themselves. So an application has the same share of its tenant's whether it has one
//! connection or a thousand. One that has nothing left to send leaves, and loses the rest of the quantum. One that spent
//! its quantum goes to the back. A connection that was stopped by the lane, or by the end of its application's turn,
//! keeps its place and the rest of its own turn (Shreedhar and Varghese, 1995). Pieces are cut to what is left, so no
//! turn ends with bytes to spare, and 0 left means that none has begun. A tenant that used up its rate is set aside with
//! all that it has, until it is brought back. Every step is O(1), and while one application sends alone nothing but a
//! counter is added to a plain list.

use std::collections::VecDeque;

use crate::ids::{AppId, RouteId};
use crate::limits::WORK_REQUEST_BYTES;
use crate::table::index_of;
use crate::tenants::{TenantPlace, Tenants};

/// The application, or tenant, that has no turn.
const NOBODY: usize = usize::MAX;

/// The ready list.
#[derive(Debug)]
pub(crate) struct Drr<K = RouteId> {
    /// Connections of the application whose turn it is. Empty only if no application has any, or all that have some are
    /// set aside.
    ready: VecDeque<K>,
    /// Its index in the engine's table, or [`NOBODY`]. An application that takes the index of one that left may find
    /// stale keys.
    current: usize,
    /// The last application that had a turn, or [`NOBODY`].
    last: usize,
    /// Another one had its turn behind it.
    is_shared: bool,
    /// Bytes that are left of its turn; 0: the turn has not begun.
    left: u32,
    /// The other applications of its tenant with something to send, each once, in order.
    waiting: VecDeque<usize>,
    /// Connections of applications other than the current one, by index: at most `apps_max`.
    others: Vec<VecDeque<K>>,
    /// The tenant whose turn it is, or [`NOBODY`].
    tenant: usize,
    /// Bytes that are left of its turn; 0: the turn has not begun.
    tenant_left: u32,
    /// The other tenants with something to send that are not set aside, each once, in order.
    tenants_waiting: VecDeque<usize>,
    /// The other tenants, by place: at most as many as the policy has.
    tenants: Vec<OtherTenant>,
    quantum: u32,
}

/// A tenant whose turn it is not.
#[derive(Debug, Default)]
struct OtherTenant {
    /// Its applications with something to send, each once, in order.
    apps: VecDeque<usize>,
    /// It used up its rate.
    is_aside: bool,
}

impl<K: Copy> Drr<K> {
    pub(crate) fn new(quantum: u32) -> Self {
        Self {
            ready: VecDeque::new(),
            current: NOBODY,
            last: NOBODY,
            is_shared: false,
            left: 0,
            waiting: VecDeque::new(),
            others: Vec::new(),
            tenant: NOBODY,
            tenant_left: 0,
            tenants_waiting: VecDeque::new(),
            tenants: Vec::new(),
            quantum,
        }
    }

    /// A connection became ready, with a deficit of 0. The caller knows that it is not in the list.
    #[inline]
    pub(crate) fn push(&mut self, app: AppId, route: K, tenants: &Tenants) {
        let (index, tenant) = (index_of(app), usize::from(tenants.of(app).0));
        // Behind connections of its own it waits for their turn, whatever tenant it has by now.
        if index == self.current && (tenant == self.tenant || !self.ready.is_empty()) {
            self.ready.push_back(route);
        } else {
            self.push_other(index, tenant, route);
        }
    }

    #[inline(never)]
    fn push_other(&mut self, index: usize, tenant: usize, route: K) {
        if self.ready.is_empty() {
            // The application may be the last one that had a turn, and be set aside with its tenant now.
            self.current = NOBODY;
        }
        if self.others.len() <= index {
            self.others.resize_with(index + 1, VecDeque::new);
        }
        if self.tenants.len() <= tenant {
            self.tenants.resize_with(tenant + 1, OtherTenant::default);
        }
        let Some(queue) = self.others.get_mut(index) else { return };
        let is_new = queue.is_empty();
        queue.push_back(route);
        if is_new && tenant == self.tenant {
            self.waiting.push_back(index);
        } else if is_new && let Some(other) = self.tenants.get_mut(tenant) {
            if other.apps.is_empty() && !other.is_aside {
                self.tenants_waiting.push_back(tenant);
            }
            other.apps.push_back(index);
        }
        if self.ready.is_empty() {
            self.next_application();
        }
    }

    /// Whose turn it is.
    #[inline]
    pub(crate) fn front(&self) -> Option<K> {
        self.ready.front().copied()
    }

    /// Whether nobody has anything to send, those set aside included.
    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty() && self.tenants.iter().all(|tenant| tenant.apps.is_empty())
    }

    /// The tenant whose turn it is.
    #[inline]
    pub(crate) fn tenant(&self) -> Option<TenantPlace> {
        u16::try_from(self.tenant).ok().map(TenantPlace)
    }

    /// Begins the turn of the first tenant, its first application and its first connection, which has this deficit, or
    /// goes on with it.
    #[inline]
    pub(crate) fn begin_turn(&mut self, deficit: &mut u32, tenants: &Tenants) {
        if self.tenant_left == 0 {
            let weight = self.tenant().map_or(1, |tenant| tenants.weight(tenant));
            self.tenant_left = self.quantum.saturating_mul(weight);
        }
        if self.left == 0 {
            self.left = self.quantum;
        }
        if *deficit == 0 {
            *deficit = self.quantum;
        }
    }

    /// Bytes that the first connection, with this deficit, may send before its turn, its application's or its tenant's
    /// ends. While no other application waits its own turn alone counts, so that no piece is cut for nothing.
    #[inline]
    pub(crate) fn allowance(&self, deficit: u32) -> u32 {
        if self.has_waiting() { self.tenant_left.min(self.left).min(deficit) } else { deficit }
    }

    /// Whether another application waits for its turn.
    #[inline]
    fn has_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.tenants_waiting.is_empty()
    }

    /// Whether two applications had their turns one after the other since this was asked last.
    #[inline]
    pub(crate) fn take_is_shared(&mut self) -> bool {
        std::mem::take(&mut self.is_shared)
    }

    /// The first connection, with this deficit, sent a piece. The last one of a turn may be longer than what was left. A
    /// short piece costs the application as much as [`WORK_REQUEST_BYTES`].
    #[inline]
    pub(crate) fn spend(&mut self, deficit: &mut u32, bytes: u32) {
        *deficit = deficit.saturating_sub(bytes);
        let cost = bytes.max(WORK_REQUEST_BYTES);
        self.left = self.left.saturating_sub(cost);
        self.tenant_left = self.tenant_left.saturating_sub(cost);
    }

    /// The first connection, with this deficit left, may send no more in this turn: others come before it comes again.
    pub(crate) fn rotate(&mut self, deficit: u32) {
        if deficit == 0
            && let Some(route) = self.ready.pop_front()
        {
            self.ready.push_back(route);
        }
        self.end_turn_if_spent();
    }

    /// The first connection leaves the list; the caller clears its deficit.
    #[inline]
    pub(crate) fn leave(&mut self) {
        self.ready.pop_front();
        if self.ready.is_empty() { self.next_application() } else { self.end_turn_if_spent() }
    }

    #[inline]
    fn end_turn_if_spent(&mut self) {
        if self.tenant_left == 0 && !self.tenants_waiting.is_empty() {
            self.waiting.push_back(self.current);
            self.tenants_waiting.push_back(self.tenant);
            self.next_tenant();
        } else if self.left == 0 && !self.waiting.is_empty() {
            self.waiting.push_back(self.current);
            self.next_application();
        }
    }

    /// The turn of the first application is over. If it has something left, it waits.
    #[inline]
    fn next_application(&mut self) {
        self.left = 0;
        match self.waiting.pop_front() {
            Some(index) => self.switch_to(index),
            None => self.next_tenant(),
        }
    }

    /// The turn of the first tenant is over. If it has something left, it waits.
    fn next_tenant(&mut self) {
        (self.left, self.tenant_left) = (0, 0);
        let Some(next) = self.tenants_waiting.pop_front() else { return };
        // Both have their places, because each was pushed there first.
        if let Some(before) = self.tenants.get_mut(self.tenant) {
            std::mem::swap(&mut before.apps, &mut self.waiting);
        }
        if let Some(other) = self.tenants.get_mut(next) {
            std::mem::swap(&mut other.apps, &mut self.waiting);
        }
        self.tenant = next;
        if let Some(index) = self.waiting.pop_front() {
            self.switch_to(index);
        }
    }

    #[inline(never)]
    fn switch_to(&mut self, index: usize) {
        // Both have their places, because each was pushed there first.
        if let Some(place) = self.others.get_mut(self.current) {
            std::mem::swap(place, &mut self.ready);
        }
        self.is_shared |= self.last != NOBODY && self.last != index;
        (self.current, self.last) = (index, index);
        if let Some(place) = self.others.get_mut(index) {
            std::mem::swap(place, &mut self.ready);
        }
    }

    /// The first tenant used up its rate: all that it has waits until it is brought back.
    pub(crate) fn set_aside(&mut self) {
        if let Some(place) = self.others.get_mut(self.current) {
            std::mem::swap(place, &mut self.ready);
            self.waiting.push_front(self.current);
        }
        if let Some(tenant) = self.tenants.get_mut(self.tenant) {
            tenant.is_aside = true;
            std::mem::swap(&mut tenant.apps, &mut self.waiting);
        }
        (self.current, self.tenant) = (NOBODY, NOBODY);
        self.next_tenant();
    }

    /// A tenant may send again.
    pub(crate) fn bring_back(&mut self, tenant: TenantPlace) {
        let place = usize::from(tenant.0);
        let Some(other) = self.tenants.get_mut(place).filter(|other| other.is_aside) else { return };
        other.is_aside = false;
        if !other.apps.is_empty() {
            self.tenants_waiting.push_back(place);
        }
        if self.ready.is_empty() {
            self.next_tenant();
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.quantum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;
    use crate::tenants::TenantTerms;

    /// Connections of one application.
    fn of_one(backlog: &[u64]) -> Vec<(u32, u64)> {
        backlog.iter().map(|&bytes| (1, bytes)).collect()
    }

    /// Serves flows with an application and `backlog` bytes each in pieces of at most `piece`, `stop_every` bytes the
    /// lane stops; returns bytes served per flow when `total` have been served.
    fn serve(quantum: u32, flows: &[(u32, u64)], piece: u32, total: u64, stop_every: u64) -> Vec<u64> {
        serve_tenants(quantum, &Tenants::default(), flows, piece, total, stop_every)
    }

    fn serve_tenants(
        quantum: u32,
        tenants: &Tenants,
        flows: &[(u32, u64)],
        piece: u32,
        total: u64,
        stop_every: u64,
    ) -> Vec<u64> {
        let mut drr = Drr::new(quantum);
        let mut left: Vec<u64> = flows.iter().map(|f| f.1).collect();
        let mut deficit = vec![0u32; flows.len()];
        let mut served = vec![0u64; flows.len()];
        (0..flows.len()).for_each(|i| drr.push(AppId(flows[i].0), RouteId::from_bits(i as u32), tenants));
        let (mut sum, mut until_stop) = (0, stop_every);
        while let Some(route) = drr.front() {
            let i = route.bits() as usize;
            drr.begin_turn(&mut deficit[i], tenants);
            loop {
                if sum >= total {
                    return served;
                }
                let n = left[i].min(piece.into()).min(drr.allowance(deficit[i]).into());
                if n == 0 {
                    break;
                }
                if until_stop < n {
                    until_stop = stop_every;
                    drr.begin_turn(&mut deficit[i], tenants);
                    continue;
                }
                until_stop -= n;
                left[i] -= n;
                drr.spend(&mut deficit[i], n as u32);
                served[i] += n;
                sum += n;
            }
            if left[i] == 0 {
                deficit[i] = 0;
                drr.leave();
            } else {
                drr.rotate(deficit[i]);
            }
        }
        assert!(drr.is_empty() && drr.waiting.is_empty() && drr.others.iter().all(VecDeque::is_empty));
        served
    }

    #[test]
    fn equal_backlogs_are_served_equally_within_one_quantum() {
        for (quantum, piece) in [(4096, 4096), (65536, 10_000), (10_000, 65536)] {
            let served = serve(quantum, &of_one(&[10_000_000; 7]), piece, 20_000_000, 1 << 17);
            let (min, max) = (served.iter().min().unwrap(), served.iter().max().unwrap());
            assert!(max - min <= u64::from(quantum), "{served:?}");
        }
    }

    #[test]
    fn applications_are_served_equally_whatever_they_have_of_connections() {
        for (quantum, piece) in [(4096, 4096), (65536, 10_000), (10_000, 65536)] {
            let flows: Vec<_> = (0..111).map(|i| (if i < 100 { 3 } else { 1 + i % 2 }, 10_000_000)).collect();
            let served = serve(quantum, &flows, piece, 50_000_000, 1 << 17);
            let of = |app| flows.iter().zip(&served).filter(|(f, _)| f.0 == app).map(|(_, s)| s).sum::<u64>();
            let shares = [of(1), of(2), of(3)];
            assert!(shares.iter().max().unwrap() - shares.iter().min().unwrap() <= u64::from(quantum), "{shares:?}");
            // Those of one application are equal among themselves.
            let (min, max) = (served[..100].iter().min().unwrap(), served[..100].iter().max().unwrap());
            assert!(max - min <= 2 * u64::from(quantum), "{served:?}");
        }
    }

    #[test]
    fn a_list_is_shared_once_two_applications_had_turns_one_after_the_other() {
        let tenants = Tenants::default();
        let mut drr = Drr::new(4096);
        let mut turn = |app, route| {
            drr.push(AppId(app), RouteId::from_bits(route), &tenants);
            drr.leave();
            drr.take_is_shared()
        };
        assert_eq!([turn(1, 1), turn(1, 2), turn(1, 1)], [false; 3], "connections of one application");
        assert_eq!([turn(2, 3), turn(2, 3), turn(1, 1)], [true, false, true]);
    }

    #[test]
    fn a_thousand_short_messages_do_not_come_before_another_application() {
        let mut flows = vec![(1, 8); 10_000];
        flows.push((2, 1 << 20));
        let served = serve(65536, &flows, 65536, 65536 / u64::from(WORK_REQUEST_BYTES) * 8 + 1, u64::MAX);
        assert!(served[10_000] > 0, "after as many as a quantum pays for");
    }

    #[test]
    fn a_greedy_flow_does_not_delay_small_ones() {
        let mut backlog = [100u64; 50];
        backlog[0] = 1 << 40;
        let served = serve(65536, &of_one(&backlog), 65536, 65536 + 49 * 100, u64::MAX);
        assert!(served[1..].iter().all(|&s| s == 100), "{served:?}");
    }

    #[test]
    fn everything_is_served_once() {
        let flows = [(1, 1), (2, 5000), (7, 0), (2, 100_000), (1, 3)];
        assert_eq!(serve(4096, &flows, 1500, u64::MAX, 6000), [1, 5000, 0, 100_000, 3]);
    }

    /// Of application `a`, the tenant `of[a]`; tenants with these weights.
    fn tenants(of: &[u16], weights: &[u16]) -> Tenants {
        let mut tenants = Tenants::default();
        tenants.set_terms(weights.iter().map(|&weight| TenantTerms { weight, ..TenantTerms::default() }).collect());
        of.iter().enumerate().for_each(|(app, &place)| tenants.join(AppId(app as u32), TenantPlace(place)));
        tenants
    }

    #[test]
    fn tenants_are_served_by_weight_whatever_they_have_of_applications() {
        for (quantum, piece) in [(4096, 4096), (65536, 10_000), (10_000, 65536)] {
            // Twenty programs of tenant 0, one of tenant 1, two of tenant 2, which has three times the weight.
            let of: Vec<u16> = (0..23).map(|app| [0, 1, 2][usize::from(app >= 20) + usize::from(app >= 21)]).collect();
            let tenants = tenants(&of, &[1, 1, 3]);
            let flows: Vec<_> = (0..23).map(|app| (app, 100_000_000)).collect();
            let served = serve_tenants(quantum, &tenants, &flows, piece, 50_000_000, 1 << 17);
            let part = |apps: std::ops::Range<usize>| served[apps].iter().sum::<u64>() as f64 / 50e6;
            for (got, share) in [(part(0..20), 0.2), (part(20..21), 0.2), (part(21..23), 0.6)] {
                assert!((got / share - 1.0).abs() < 0.02, "{got} of {share}: {served:?}");
            }
            let (min, max) = (served[..20].iter().min().unwrap(), served[..20].iter().max().unwrap());
            assert!(max - min <= 2 * u64::from(quantum), "{served:?}");
        }
    }

    /// Draws below a bound, from a seed.
    fn draws(mut state: u64) -> impl FnMut(u64) -> u64 {
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        }
    }

    #[test]
    fn none_is_lost_or_served_twice_while_tenants_are_set_aside_and_programs_change_them() {
        for seed in 0..2000 {
            let mut draw = draws(seed);
            let mut tenants = tenants(&[0, 1, 2, 0, 1, 2], &[1, 2, 3]);
            let mut drr = Drr::new(1000);
            let (mut inside, mut aside) = (std::collections::BTreeMap::new(), std::collections::BTreeSet::new());
            for step in 0..400 {
                match draw(8) {
                    0..=2 => {
                        let app = draw(6) as u32;
                        drr.push(AppId(app), RouteId::from_bits(step), &tenants);
                        inside.insert(step, 0u32);
                    }
                    3 => tenants.join(AppId(draw(6) as u32), TenantPlace(draw(3) as u16)),
                    4 if drr.front().is_some() => {
                        aside.insert(drr.tenant().expect("somebody has the turn"));
                        drr.set_aside();
                    }
                    5 => {
                        let place = TenantPlace(draw(3) as u16);
                        aside.remove(&place);
                        drr.bring_back(place);
                    }
                    _ => serve_once(&mut drr, &tenants, &mut inside, draw(2500) as u32),
                }
                if let Some(tenant) = drr.tenant().filter(|_| drr.front().is_some()) {
                    assert!(!aside.contains(&tenant), "seed {seed}: a tenant set aside has its turn");
                }
                assert_eq!(drr.is_empty(), inside.is_empty(), "seed {seed}, step {step}");
            }
            (0..3).for_each(|place| drr.bring_back(TenantPlace(place)));
            while drr.front().is_some() {
                serve_once(&mut drr, &tenants, &mut inside, u32::MAX);
            }
            assert!(inside.is_empty() && drr.is_empty(), "seed {seed}: {inside:?} {drr:?}");
        }
    }

    /// The connection whose turn it is sends so much at most; with everything it leaves.
    fn serve_once(drr: &mut Drr, tenants: &Tenants, inside: &mut std::collections::BTreeMap<u32, u32>, bytes: u32) {
        let Some(route) = drr.front() else { return };
        let deficit = inside.get_mut(&route.bits()).expect("it was pushed, and is served once");
        drr.begin_turn(deficit, tenants);
        let spent = bytes.min(drr.allowance(*deficit));
        drr.spend(deficit, spent);
        if bytes > 2000 {
            inside.remove(&route.bits());
            drr.leave();
        } else {
            drr.rotate(*deficit);
        }
    }
}
