//! `raas group`: replicated groups from a shell.
//!
//! Owns what is said of a group with its key, by the members' memories, and without, by this host's daemon alone. It must
//! not say more than these do.

use std::net::{IpAddr, Ipv4Addr};

use control::RegionRow;
use raas_group::{Class, GroupError, MemberStatus, Status, Term};
use serde_json::{Value, json};
use terminal::table::{self, Align, Table};
use terminal::{Failure, out};
use transport::session_failure;

use crate::cli::{GroupCommand, GroupStatusArgs};
use crate::region;

const SCHEMA: &str = "raas.group/1";
/// What the names of groups' regions begin with.
const REGION: &str = "group/";

/// Does what was asked for.
pub(crate) fn run(command: &GroupCommand) -> Result<(), Failure> {
    match command {
        GroupCommand::Status(args) => status(args),
    }
}

/// A group, as far as it can be seen.
#[derive(Debug)]
enum Group {
    /// By its members' memories.
    Seen(Box<Status>),
    /// By this host's daemon: who writes the memory here.
    Listed(RegionRow),
}

fn status(args: &GroupStatusArgs) -> Result<(), Failure> {
    let groups = groups(args)?;
    if args.json {
        let groups: Vec<Value> = groups.iter().map(to_json).collect();
        return out::line(json!({ "schema": SCHEMA, "groups": groups })).map(drop);
    }
    let texts: Vec<String> = groups.iter().map(to_text).collect();
    out::print(if texts.is_empty() { "this host has no memory of a group\n".to_owned() } else { texts.join("\n") })
        .map(drop)
}

fn groups(args: &GroupStatusArgs) -> Result<Vec<Group>, Failure> {
    let key = region::given_key(&args.key)?;
    if let (Some(name), Some(key)) = (&args.name, key) {
        let host = args.host.as_deref().map_or(Ok(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), region::host)?;
        let session = region::attach(&args.socket, "raas group")?;
        let seen = raas_group::status(&session, host, name, key).map_err(failure)?;
        return Ok(vec![Group::Seen(Box::new(seen))]);
    }
    if args.host.is_some() {
        return Err(Failure::Usage(
            "--host: what another host's daemon knows it tells nobody without the group's key".into(),
        ));
    }
    let rows = raas::inspect::regions(args.socket.path()).map_err(session_failure)?;
    let is_wanted = |name: &str| args.name.as_deref().is_none_or(|wanted| wanted == name);
    let rows = rows.into_iter().filter(|row| row.single_writer && row.name.strip_prefix(REGION).is_some_and(is_wanted));
    let rows: Vec<RegionRow> = rows.collect();
    if let Some(name) = args.name.as_deref().filter(|_| rows.is_empty()) {
        return Err(Failure::Refused(format!("this host has no memory of a group `{name}` that this user may see")));
    }
    let Some(key) = key else { return Ok(rows.into_iter().map(Group::Listed).collect()) };
    // Groups of other keys stay as the daemon lists them.
    let session = region::attach(&args.socket, "raas group")?;
    let here = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
    let seen = |row: RegionRow| match raas_group::status(&session, here, name_of(&row), key) {
        Ok(seen) => Group::Seen(Box::new(seen)),
        Err(_) => Group::Listed(row),
    };
    Ok(rows.into_iter().map(seen).collect())
}

fn name_of(row: &RegionRow) -> &str {
    row.name.strip_prefix(REGION).unwrap_or(&row.name)
}

/// The round in which the memory here was last taken over.
fn term_of(row: &RegionRow) -> u64 {
    Term::of_fence(row.term).round()
}

fn to_json(group: &Group) -> Value {
    match group {
        Group::Seen(seen) => {
            let members = seen.members.iter().map(|member| {
                json!({
                    "id": member.id, "host": member.host, "role": member.role.name(), "lag_bytes": member.lag_bytes,
                    "synced_lag_bytes": member.synced_lag_bytes, "file_fault": member.file_fault,
                    "alive": member.alive,
                })
            });
            json!({
                "name": seen.name, "class": seen.class.name(), "term": seen.term, "leader": seen.leader, "commit": seen.commit,
                "members": members.collect::<Vec<_>>(), "fail_overs": seen.fail_overs,
            })
        }
        Group::Listed(row) => json!({
            "name": name_of(row), "class": null, "term": term_of(row), "leader": row.writer, "commit": null, "members": [],
            "fail_overs": null,
        }),
    }
}

fn to_text(group: &Group) -> String {
    let seen = match group {
        Group::Listed(row) => {
            let writer =
                row.writer.as_deref().map_or("written by nobody".to_owned(), |host| format!("written by {host}"));
            let (name, term) = (name_of(row), term_of(row));
            return format!("group {name}: term {term}, {writer}; with --key-file: its commit and members\n");
        }
        Group::Seen(seen) => seen,
    };
    let leader = seen.leader.map_or("nobody leads".to_owned(), |host| format!("led by {host}"));
    let has_files = seen.class == Class::SyncedMajority;
    let mut columns =
        vec![("ID", Align::Right), ("HOST", Align::Left), ("ROLE", Align::Left), ("LAG BYTES", Align::Right)];
    if has_files {
        columns.extend([("SYNCED LAG", Align::Right), ("FILE", Align::Left)]);
    }
    columns.push(("PROGRAM", Align::Left));
    let mut t = Table::new(&columns);
    for member in &seen.members {
        let bytes = |lag: Option<u64>| lag.map_or("-".to_owned(), table::grouped);
        let mut row = vec![
            member.id.to_string(),
            member.host.map_or("-".to_owned(), |host| host.to_string()),
            member.role.name().to_owned(),
            bytes(member.lag_bytes),
        ];
        if has_files {
            row.extend([bytes(member.synced_lag_bytes), file(member)]);
        }
        row.push(if member.alive { "alive" } else { "silent" }.to_owned());
        t.row(row);
    }
    let Status { name, class, term, commit, fail_overs, .. } = &**seen;
    format!("group {name}: {class}, term {term}, {leader}, commit {commit}, {fail_overs} fail-overs\n{}", t.render())
}

/// What became of a member's file.
fn file(member: &MemberStatus) -> String {
    match (member.synced_lag_bytes, member.file_fault) {
        (None, _) => "-".to_owned(),
        (Some(_), None) => "kept".to_owned(),
        (Some(_), Some(fault)) => {
            let fault = i32::try_from(fault).map(std::io::Error::from_raw_os_error);
            fault.map_or("failed".to_owned(), |error| format!("failed: {error}"))
        }
    }
}

/// What the command's end says.
fn failure(e: GroupError) -> Failure {
    match e {
        GroupError::Region(e) => region::failure(e),
        e => Failure::Failed(e.to_string()),
    }
}
