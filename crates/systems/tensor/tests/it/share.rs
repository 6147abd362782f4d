//! What flows: gets, fetches, copies, references.

use tensor::{DType, Error, Layout, Pool, PoolOptions, Reader};

use crate::hosts::{address, bounded, eventually, host, is_of, judge, made, program, put, reader, words};

#[test]
fn a_reader_of_the_pools_host_has_it_mapped_and_nothing_is_copied() {
    bounded(|| {
        let here = host();
        let pool = Pool::create(here.session(), "pool", 8 << 20).unwrap();
        let layout = Layout::strided(DType::F32, &[3, 2], &[1, 3]).unwrap();
        let draft = pool.make(layout.clone()).unwrap();
        draft.write(0, &[7; 24]).unwrap();
        let generation = pool.put("columns", draft).unwrap();
        let big = put(&pool, "big", 500_000);
        let session = program(&here);
        let reader = reader(&here, &session, &pool);
        let columns = reader.get("columns").unwrap();
        assert_eq!((columns.layout(), columns.generation(), columns.is_here()), (&layout, generation, true));
        let big_one = reader.get("big").unwrap();
        assert_eq!(columns.as_ptr().unwrap() as usize % 256, 0);
        let counts = reader.counts();
        assert_eq!((counts.gets, counts.bytes_copied, counts.reads), (2, 0, 0));
        let verbs = raas::inspect::stat(Some(here.socket())).unwrap().apps;
        assert!(verbs.iter().all(|app| (app.reads, app.writes) == (0, 0)), "verbs on one host");
        judge(&big_one);
        assert_eq!(reader.counts().bytes_copied, 4_000_000, "a copy that was asked for is counted");
        assert_eq!(big_one.generation(), big);
        // The owner's own program needs no connection.
        assert_eq!(pool.get("columns").unwrap().to_vec().unwrap(), [7; 24]);
    });
}

#[test]
fn from_another_host_it_comes_by_one_read_into_the_readers_pool() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 8 << 20).unwrap();
        put(&pool, "big", 1);
        let generation = put(&pool, "big", 300_000);
        let reader = reader(&here, there.session(), &pool);
        let own = Pool::create(there.session(), "own", 8 << 20).unwrap();
        let far = reader.get("big").unwrap();
        assert!(matches!(far.as_ptr(), Err(Error::NotHere { .. })));
        let draft = own.fetch(&far).unwrap();
        let counts = reader.counts();
        assert_eq!((counts.reads, counts.bytes_read, counts.bytes_copied), (1, 2_400_000, 0));
        drop(far);
        eventually("the pin is back", || pool.holders().is_empty());
        let mine = own.put("mine", draft).unwrap();
        let bytes = own.get("mine").unwrap().to_vec().unwrap();
        assert!(is_of(&bytes, generation) && mine != generation);
        // READs: the head; the payload; the header behind it.
        let apps = raas::inspect::stat(Some(there.socket())).unwrap().apps;
        let read_bytes: u64 = apps.iter().map(|app| app.reads).sum();
        assert_eq!(read_bytes, 3, "READs of a fetch");
    });
}

#[test]
fn a_fetch_goes_into_the_same_kind_of_tensor_alone() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 1 << 20).unwrap();
        put(&pool, "a", 10);
        for place in [&here, &there] {
            let own = Pool::create(place.session(), "own", 1 << 20).unwrap();
            let found = reader(&here, place.session(), &pool).get("a").unwrap();
            let into = |layout| own.make(layout).unwrap();
            let other = into(Layout::new(DType::I64, &[10]).unwrap());
            assert!(matches!(found.fetch_into(&other), Err(Error::WrongType { .. })));
            assert!(matches!(found.fetch_into(&into(words(11))), Err(Error::WrongShape { .. })));
            let same = into(words(10));
            found.fetch_into(&same).unwrap();
            let mut bytes = [0; 80];
            same.read(0, &mut bytes).unwrap();
            assert!(is_of(&bytes, found.generation()));
            assert!(matches!(found.read(4, &mut bytes[..8]), Err(Error::Misaligned { offset: 4, bytes: 8, .. })));
            assert!(matches!(found.read(80, &mut bytes[..8]), Err(Error::OutOfBounds { .. })));
        }
    });
}

#[test]
fn zero_sizes_and_no_dimension_are_tensors() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 1 << 20).unwrap();
        pool.put("none", pool.make(Layout::new(DType::F64, &[0, 3]).unwrap()).unwrap()).unwrap();
        let single = pool.make(Layout::new(DType::Bf16, &[]).unwrap()).unwrap();
        single.write(0, &[1, 2]).unwrap();
        pool.put("single", single).unwrap();
        for place in [&here, &there] {
            let own = Pool::create(place.session(), "own", 1 << 20).unwrap();
            let reader = reader(&here, place.session(), &pool);
            let (none, single) = (reader.get("none").unwrap(), reader.get("single").unwrap());
            assert_eq!((none.to_vec().unwrap(), none.layout().elements()), (vec![], 0));
            assert_eq!(own.fetch(&none).unwrap().layout().shape(), [0, 3]);
            assert_eq!((single.to_vec().unwrap(), single.layout().elements()), (vec![1, 2], 1));
            assert_eq!(own.fetch(&single).unwrap().layout().dtype(), DType::Bf16);
        }
    });
}

#[test]
fn a_reader_holds_more_than_one_connection_carries() {
    bounded(|| {
        let (here, there) = (host(), host());
        let pool = Pool::create(here.session(), "pool", 4 << 20).unwrap();
        put(&pool, "a", 4);
        for session in [program(&here), program(&there)] {
            let reader = reader(&here, &session, &pool);
            let held: Vec<_> = (0..200).map(|_| reader.get("a").unwrap()).collect();
            assert_eq!(pool.holders().len(), 200);
            held.iter().for_each(judge);
            drop(held);
            eventually("all pins are back", || pool.holders().is_empty());
            let rest: Vec<_> = (0..1024).map(|_| reader.get("a")).take_while(Result::is_ok).collect();
            assert_eq!(rest.len(), 1024);
            assert!(matches!(reader.get("a"), Err(Error::TooManyHeld { max: 1024, .. })));
        }
    });
}

#[test]
fn who_has_not_the_key_gets_nothing() {
    bounded(|| {
        let here = host();
        let pool = PoolOptions::new().names_max(1).create(here.session(), "pool", 1 << 20).unwrap();
        put(&pool, "a", 4);
        let other = raas::RegionKey::new([1; 16]);
        assert!(Reader::open(here.session(), address(&here), "pool", other).is_err());
        raas::RegionOptions::new().key(other).create(here.session(), "plain", 4096).unwrap();
        let plain = raas::RegionOptions::new().key(other).create(here.session(), "plain", 4096).unwrap();
        let opened = Reader::open(here.session(), address(&here), "plain", other);
        assert!(matches!(opened, Err(Error::Protocol { .. })), "a region that is no pool");
        drop(plain);
        let draft = made(&pool, 4).unwrap();
        assert!(matches!(pool.put("b", draft), Err(Error::TooManyNames { max: 1, .. })));
    });
}
