//! The cases, by theme.

mod access;
mod atomics;
mod data;
mod datagram_drops;
mod datagram_states;
mod datagrams;
mod domains;
mod events;
mod flush;
mod lengths;
mod memory_ops;
mod order;
mod rnr;
mod srq;
mod states;
mod unreliable;
mod unreliable_drops;
mod unreliable_states;

use crate::Case;

/// Fails the case with a message unless the condition holds.
macro_rules! ensure {
    ($cond:expr, $($arg:tt)+) => {
        if !$cond {
            return Err($crate::Failure(format!($($arg)+)));
        }
    };
}
pub(crate) use ensure;

/// Declares the cases of a theme by the functions that are their bodies. After `of` stands what makes the options of the
/// theme's service: each body then takes them, so that themes of several services share bodies.
macro_rules! cases {
    ($theme:literal: $($name:ident),* $(,)?) => {
        $crate::cases::cases!(@ $theme, false, $($name => $name),*);
    };
    ($theme:literal, unreliable: $($name:ident),* $(,)?) => {
        $crate::cases::cases!(@ $theme, true, $($name => $name),*);
    };
    ($theme:literal of $options:path: $($name:ident),* $(,)?) => {
        $crate::cases::cases!(@ $theme, false, $($name => |rig| $name(rig, $options())),*);
    };
    ($theme:literal of $options:path, unreliable: $($name:ident),* $(,)?) => {
        $crate::cases::cases!(@ $theme, true, $($name => |rig| $name(rig, $options())),*);
    };
    (@ $theme:literal, $unreliable:literal, $($name:ident => $body:expr),*) => {
        pub(super) const CASES: &[$crate::Case] = &[
            $($crate::Case { name: concat!($theme, ".", stringify!($name)), body: $body, unreliable: $unreliable }),*
        ];
    };
}
pub(crate) use cases;

const THEMES: [&[Case]; 18] = [
    data::CASES,
    memory_ops::CASES,
    atomics::CASES,
    order::CASES,
    access::CASES,
    lengths::CASES,
    rnr::CASES,
    flush::CASES,
    srq::CASES,
    events::CASES,
    states::CASES,
    datagrams::CASES,
    datagram_drops::CASES,
    datagram_states::CASES,
    unreliable::CASES,
    unreliable_drops::CASES,
    unreliable_states::CASES,
    domains::CASES,
];

const COUNT: usize = {
    let mut n = 0;
    let mut i = 0;
    while i < THEMES.len() {
        n += THEMES[i].len();
        i += 1;
    }
    n
};

/// Every case.
pub const CASES: [Case; COUNT] = {
    let mut all = [THEMES[0][0]; COUNT];
    let (mut theme, mut i, mut n) = (0, 0, 0);
    while theme < THEMES.len() {
        while i < THEMES[theme].len() {
            all[n] = THEMES[theme][i];
            n += 1;
            i += 1;
        }
        i = 0;
        theme += 1;
    }
    all
};
