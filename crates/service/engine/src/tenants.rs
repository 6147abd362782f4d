//! The tenants of the host, as the engine serves them: their weights, and how much they may send in a second.
//!
//! Owns which application is whose, and what is left of each rate. It must never stop a tenant without keeping who waits
//! for it: a lane is told when the tenant may send again. Who is whose is decided elsewhere (docs/operate/policy.md).
//!
//! A rate is a leaky bucket that is paid afterwards: a tenant may send while it owes nothing, and owes the time that the
//! rate gives for what it sent. What it did not use it keeps for [`BURST`] (ITU-T I.371, the virtual scheduling
//! algorithm).

use std::time::Duration;

use verbs::Time;

use crate::ids::{AppId, LaneId};
use crate::table::index_of;

/// What a tenant did not send in this time it may send later at once.
const BURST: Duration = Duration::from_millis(10);
const NANOS_PER_S: u64 = 1_000_000_000;

/// A tenant by its place in the operator's policy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantPlace(pub u16);

/// How a tenant is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantTerms {
    /// Its part of a lane beside other tenants' that have something to send; 0 counts as 1.
    pub weight: u16,
    /// Bytes that its programs may send to other hosts, and READ from there, in a second; none: no bound.
    pub bytes_per_s: Option<u64>,
    /// Work requests that the daemon may post for its programs in a second; none: no bound.
    pub operations_per_s: Option<u64>,
    /// Bytes that may be registered with the device for its programs; none: no bound.
    pub pinned_bytes_max: Option<u64>,
}

impl Default for TenantTerms {
    fn default() -> Self {
        Self { weight: 1, bytes_per_s: None, operations_per_s: None, pinned_bytes_max: None }
    }
}

/// Who waits until a tenant may send again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waits {
    Lane(LaneId),
    Datagrams,
    /// Messages on UC.
    Messages,
}

/// The tenants. At first there is no table: all applications are one tenant's, of weight 1 and without rates.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    /// By index of the application.
    places: Vec<TenantPlace>,
    /// By place.
    table: Vec<Tenant>,
    /// Those that are stopped, each once.
    stopped: Vec<TenantPlace>,
    /// How often one was stopped.
    stops: u64,
}

#[derive(Debug)]
struct Tenant {
    weight: u32,
    bytes: Option<Rate>,
    operations: Option<Rate>,
    pinned_bytes_max: Option<u64>,
    waits: Vec<Waits>,
}

impl Tenant {
    fn may_send(&self, now: Time) -> bool {
        let is_open = |rate: &Option<Rate>| rate.as_ref().is_none_or(|rate| rate.owes_until <= now);
        is_open(&self.bytes) && is_open(&self.operations)
    }

    /// When it may send again.
    fn opens(&self) -> Time {
        let of = |rate: &Option<Rate>| rate.as_ref().map_or(Time::ZERO, |rate| rate.owes_until);
        of(&self.bytes).max(of(&self.operations))
    }
}

impl Tenants {
    /// Another policy: these tenants, by place. All that wait are to look again, and come back.
    pub(crate) fn set_terms(&mut self, terms: Vec<TenantTerms>) -> Vec<(TenantPlace, Vec<Waits>)> {
        let stopped = std::mem::take(&mut self.stopped);
        let mut waits_of = |place: TenantPlace| {
            let tenant = self.table.get_mut(usize::from(place.0));
            (place, tenant.map(|tenant| std::mem::take(&mut tenant.waits)).unwrap_or_default())
        };
        let waits = stopped.into_iter().map(&mut waits_of).collect();
        let tenant = |terms: TenantTerms| Tenant {
            weight: u32::from(terms.weight.max(1)),
            bytes: terms.bytes_per_s.map(Rate::new),
            operations: terms.operations_per_s.map(Rate::new),
            pinned_bytes_max: terms.pinned_bytes_max,
            waits: Vec::new(),
        };
        self.table = terms.into_iter().map(tenant).collect();
        waits
    }

    /// An application is a tenant's from here on.
    pub(crate) fn join(&mut self, app: AppId, place: TenantPlace) {
        let index = index_of(app);
        if self.places.len() <= index {
            self.places.resize(index + 1, TenantPlace::default());
        }
        self.places[index] = place;
    }

    /// Whose an application is.
    #[inline]
    pub(crate) fn of(&self, app: AppId) -> TenantPlace {
        self.places.get(index_of(app)).copied().unwrap_or_default()
    }

    /// Bytes that may be registered for its programs.
    pub(crate) fn pinned_bytes_max(&self, place: TenantPlace) -> Option<u64> {
        self.table.get(usize::from(place.0))?.pinned_bytes_max
    }

    #[inline]
    pub(crate) fn weight(&self, place: TenantPlace) -> u32 {
        self.table.get(usize::from(place.0)).map_or(1, |tenant| tenant.weight)
    }

    /// Whether an application's tenant has a rate.
    pub(crate) fn has_rate(&self, app: AppId) -> bool {
        let tenant = self.table.get(usize::from(self.of(app).0));
        tenant.is_some_and(|tenant| tenant.bytes.is_some() || tenant.operations.is_some())
    }

    /// Whether a tenant may send now. If not, `waits` is told when it may again, and must hold it back until then.
    #[inline]
    pub(crate) fn may_send(&mut self, place: TenantPlace, now: Time, waits: Waits) -> bool {
        let Some(tenant) = self.table.get_mut(usize::from(place.0)) else { return true };
        if tenant.may_send(now) {
            return true;
        }
        if tenant.waits.is_empty() {
            self.stopped.push(place);
            self.stops += 1;
        }
        if !tenant.waits.contains(&waits) {
            tenant.waits.push(waits);
        }
        false
    }

    /// A tenant sent, or READ, so many bytes with one work request.
    #[inline]
    pub(crate) fn charge(&mut self, place: Option<TenantPlace>, bytes: u64, now: Time) {
        let Some(tenant) = place.and_then(|place| self.table.get_mut(usize::from(place.0))) else { return };
        if let Some(rate) = &mut tenant.bytes {
            rate.charge(bytes, now);
        }
        if let Some(rate) = &mut tenant.operations {
            rate.charge(1, now);
        }
    }

    /// A tenant that may send again, and who waits for that.
    pub(crate) fn due(&mut self, now: Time) -> Option<(TenantPlace, Vec<Waits>)> {
        let table = &mut self.table;
        let is_open = |place: &TenantPlace| table.get(usize::from(place.0)).is_none_or(|tenant| tenant.may_send(now));
        let at = self.stopped.iter().position(is_open)?;
        let place = self.stopped.swap_remove(at);
        let waits = table.get_mut(usize::from(place.0)).map(|tenant| std::mem::take(&mut tenant.waits));
        Some((place, waits.unwrap_or_default()))
    }

    /// When the first of those that wait may send again.
    pub(crate) fn deadline(&self) -> Option<Time> {
        let opens = |place: &TenantPlace| self.table.get(usize::from(place.0)).map(Tenant::opens);
        self.stopped.iter().filter_map(opens).min()
    }

    /// How often a tenant was stopped by its rate.
    pub(crate) fn stops(&self) -> u64 {
        self.stops
    }
}

/// What is left of a rate.
#[derive(Debug)]
struct Rate {
    per_s: u64,
    /// What was sent is paid for at this time.
    owes_until: Time,
    /// Parts of a nanosecond that are owed besides, times `per_s`.
    rest: u64,
}

impl Rate {
    fn new(per_s: u64) -> Self {
        Self { per_s: per_s.max(1), owes_until: Time::ZERO, rest: 0 }
    }

    fn charge(&mut self, amount: u64, now: Time) {
        let kept = Time(now.0.saturating_sub(u64::try_from(BURST.as_nanos()).unwrap_or(u64::MAX)));
        if self.owes_until < kept {
            (self.owes_until, self.rest) = (kept, 0);
        }
        let owed = u128::from(amount) * u128::from(NANOS_PER_S) + u128::from(self.rest);
        let nanos = u64::try_from(owed / u128::from(self.per_s)).unwrap_or(u64::MAX);
        self.rest = u64::try_from(owed % u128::from(self.per_s)).unwrap_or(0);
        self.owes_until = Time(self.owes_until.0.saturating_add(nanos));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Key;

    const LANE: fn(u32) -> Waits = |lane| Waits::Lane(LaneId::from_bits(lane));

    fn with(bytes_per_s: Option<u64>, operations_per_s: Option<u64>) -> Tenants {
        let mut tenants = Tenants::default();
        let terms = TenantTerms { bytes_per_s, operations_per_s, ..TenantTerms::default() };
        assert!(tenants.set_terms(vec![TenantTerms::default(), terms]).is_empty());
        tenants
    }

    /// Bytes and work requests of `bytes` each that the second tenant sends in ten seconds, looking every 100 us.
    fn sent(tenants: &mut Tenants, bytes: u64) -> (u64, u64) {
        let (mut total, mut count) = (0, 0);
        for tick in 0..100_000 {
            let now = Time(tick * 100_000);
            while tenants.due(now).is_some() {}
            while tenants.may_send(TenantPlace(1), now, LANE(1)) {
                tenants.charge(Some(TenantPlace(1)), bytes, now);
                (total, count) = (total + bytes, count + 1);
            }
        }
        (total, count)
    }

    #[test]
    fn a_rate_is_kept_whatever_the_size_of_pieces() {
        for (per_s, piece) in [(1_000_000, 64), (10_000_000_000, 61_440), (7_000_003, 3), (1, 1)] {
            let (bytes, _) = sent(&mut with(Some(per_s), None), piece);
            let (fair, slack) = (per_s * 10, per_s / 50 + piece);
            assert!(bytes + slack >= fair && bytes <= fair + slack, "{bytes} of {fair}");
        }
        let (_, count) = sent(&mut with(None, Some(5000)), 61_440);
        assert!((49_900..=50_100).contains(&count), "{count} work requests");
    }

    #[test]
    fn what_was_not_used_is_kept_for_a_while_alone() {
        let mut tenants = with(Some(1_000_000), None);
        let late = Time(100 * NANOS_PER_S);
        let mut burst = 0;
        while tenants.may_send(TenantPlace(1), late, LANE(1)) {
            tenants.charge(Some(TenantPlace(1)), 1000, late);
            burst += 1000;
        }
        assert_eq!(burst, 11_000, "10 ms, and the piece that ends it");
    }

    #[test]
    fn all_that_wait_are_told_once_and_others_are_not_stopped() {
        let mut tenants = with(Some(1000), None);
        let now = Time(NANOS_PER_S);
        tenants.charge(Some(TenantPlace(1)), 500, now);
        for waits in [LANE(1), LANE(2), LANE(1), Waits::Datagrams] {
            assert!(!tenants.may_send(TenantPlace(1), now, waits));
        }
        assert!(tenants.may_send(TenantPlace(0), now, LANE(1)));
        assert!(tenants.may_send(TenantPlace(7), now, LANE(1)), "one that no policy has");
        let opens = tenants.deadline().expect("somebody waits");
        assert_eq!(opens, Time(NANOS_PER_S + 490_000_000), "500 ms less what was kept");
        assert!(tenants.due(Time(opens.0 - 1)).is_none());
        let (place, waits) = tenants.due(opens).expect("it is time");
        assert_eq!((place, waits.len()), (TenantPlace(1), 3));
        assert!(tenants.due(opens).is_none() && tenants.deadline().is_none());
        assert_eq!(tenants.stops(), 1);
    }

    #[test]
    fn another_policy_lets_all_look_again() {
        let mut tenants = with(Some(1), None);
        tenants.charge(Some(TenantPlace(1)), 500, Time(0));
        assert!(!tenants.may_send(TenantPlace(1), Time(0), LANE(3)));
        assert_eq!(tenants.set_terms(vec![]), [(TenantPlace(1), vec![LANE(3)])]);
        assert!(tenants.may_send(TenantPlace(1), Time(0), LANE(3)));
        assert_eq!(tenants.deadline(), None);
    }
}
