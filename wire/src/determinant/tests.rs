use proptest::prelude::*;

use super::*;

fn code(determinant: &Determinant<'_>) -> Vec<u8> {
    let mut out = vec![0; limits::DETERMINANT];
    let mut writer = Writer::new(&mut out);
    determinant.write(&mut writer);
    let length = writer.finish().expect("the limit holds for every determinant");
    out.truncate(length);
    out
}

fn connection(number: u64) -> ConnectionId {
    ConnectionId { opener: ProcessId { job: JobId::from_bits(u64::MAX), rank: Rank(3) }, number }
}

fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..20, any::<u32>(), Just(u32::MAX)]
}

/// Members that make runs, steps back, repetitions and extreme descriptors.
fn members() -> impl Strategy<Value = Vec<ReadyFd>> {
    let member = (prop_oneof![0u32..8, any_number()], prop_oneof![Just(1), Just(5), any::<u32>()]);
    let run = (member, 1u32..5).prop_map(|((fd, events), length)| {
        (0..length).filter_map(move |i| fd.checked_add(i)).map(move |fd| ReadyFd { fd, events }).collect::<Vec<_>>()
    });
    prop::collection::vec(run, 1..20).prop_map(|runs| runs.concat())
}

fn check(determinant: Determinant<'_>) -> Result<(), TestCaseError> {
    let bytes = code(&determinant);
    let mut reader = Reader::new(&bytes);
    prop_assert_eq!(Determinant::read(&mut reader), Ok(determinant));
    prop_assert!(reader.finish().is_ok());
    for short in 0..bytes.len() {
        prop_assert!(Determinant::read(&mut Reader::new(&bytes[..short])).is_err(), "{} of {:?}", short, bytes);
    }
    Ok(())
}

proptest! {
    #[test]
    fn what_is_written_is_read(a in any_number(), b in any_number(), big in any::<u64>(), call in 0usize..6, v6: [u16; 8]) {
        let call = Call::ALL[call];
        let v4 = SocketAddr::from(([10, 0, 0, a as u8], b as u16));
        let v6 = SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(v6), b as u16, a, b));
        for determinant in [
            Determinant::Recv { fd: a, len: b },
            Determinant::Peek { fd: a, len: b },
            Determinant::Unread { fd: a, len: b },
            Determinant::Eof { fd: a },
            Determinant::Errno { fd: a, call, errno: b },
            Determinant::Accept { listener: a, fd: b, connection: connection(big), peer: v4 },
            Determinant::Accept { listener: a, fd: b, connection: connection(big), peer: v6 },
            Determinant::Connected { fd: a },
            Determinant::Bound { fd: a, address: v6 },
            Determinant::Target { fd: a, local: v4, peer: Some(connection(big).opener) },
            Determinant::Target { fd: a, local: v6, peer: None },
            Determinant::SoError { fd: a, errno: b },
            Determinant::SendPart { fd: a, len: b },
            Determinant::Nothing,
            Determinant::Taken,
            Determinant::Refused { connection: connection(big), opened_here: false },
            Determinant::Refused { connection: connection(big), opened_here: true },
            Determinant::Empty { count: big },
            Determinant::Sent { bytes: big },
            Determinant::Thread { index: a },
            Determinant::Begins { index: a, name: big },
            Determinant::Own { bytes: big },
        ] {
            check(determinant)?;
        }
    }

    #[test]
    fn input_is_read(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        check(Determinant::Input { bytes: &bytes })?;
    }

    #[test]
    fn answers_of_the_kernel_are_read(call in 0usize..4, bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        check(Determinant::Kernel { call: KernelCall::ALL[call], bytes: &bytes })?;
    }

    #[test]
    fn readiness_is_read_in_its_order(members in members(), epoll in prop::option::of(any_number())) {
        let set = ReadySet::new(&members).unwrap();
        check(Determinant::Ready { epoll, set })?;
        let bytes = code(&Determinant::Ready { epoll, set });
        let Ok(Determinant::Ready { set, .. }) = Determinant::read(&mut Reader::new(&bytes)) else { panic!("no set") };
        prop_assert_eq!(set.iter().collect::<Vec<_>>(), members);
    }

    /// Any bytes: refused, or exactly what the encoder writes.
    #[test]
    fn bytes_are_refused_or_written_back(
        kind in 0u8..16, arg in prop_oneof![0u8..4, Just(15u8)],
        tail in prop::collection::vec(prop_oneof![0u8..6, any::<u8>(), Just(0x80)], 0..40),
    ) {
        let bytes = [&[kind | arg << 4], tail.as_slice()].concat();
        let mut reader = Reader::new(&bytes);
        if let Ok(determinant) = Determinant::read(&mut reader) {
            prop_assert_eq!(code(&determinant), &bytes[..reader.at()]);
        }
    }
}

#[test]
fn the_budget_holds() {
    let ready = [ReadyFd { fd: 20, events: 1 }];
    let ready = Determinant::Ready { epoll: Some(9), set: ReadySet::new(&ready).unwrap() };
    assert_eq!(code(&Determinant::Recv { fd: 12, len: 64 }).len(), 2);
    assert_eq!(code(&Determinant::Recv { fd: 100, len: 9_000 }).len(), 4);
    assert_eq!(code(&ready).len(), 4);
    let message =
        [Determinant::Empty { count: 900 }, Determinant::Sent { bytes: 104 }, ready, Determinant::Recv { fd: 20, len: 104 }];
    let total: usize = message.iter().map(|d| code(d).len()).sum();
    assert!(total <= 15, "{total} bytes of determinants for one message");
}

#[test]
fn the_longest_fits_the_limit() {
    let members: Vec<_> = (0..limits::READY_FDS as u32)
        .map(|i| ReadyFd { fd: if i % 2 == 0 { u32::MAX } else { 0 }, events: u32::MAX - i })
        .collect();
    let longest = code(&Determinant::Ready { epoll: Some(u32::MAX), set: ReadySet::new(&members).unwrap() });
    assert!(longest.len() <= limits::DETERMINANT && longest.len() > limits::DETERMINANT / 2, "{}", longest.len());
    let most = [7; limits::INPUT];
    assert!(code(&Determinant::Input { bytes: &most }).len() < limits::DETERMINANT);
    let more = vec![ReadyFd { fd: 1, events: 1 }; limits::READY_FDS + 1];
    assert!(ReadySet::new(&more).is_none());
}

#[test]
fn second_codes_are_refused() {
    for (bytes, what) in [
        (&[0x00u8, 0x80, 0x00][..], "a length with a needless byte"),
        (&[0x27, 0, 0x02, 1, 0x00, 1], "two runs that are one"),
        (&[0x17, 0, 0x03, 0xff, 0x7f, 1], "more descriptors than the limit"),
        (&[0x03, 6, 1], "no such call"),
        (&[0xfc, 0xf2, 0x1f, 0], "more input than the limit"),
        (&[0x2f], "no such kind"),
        (&[0x7e, 4, 10, 0, 0, 1, 0, 0, 2], "neither a peer nor none"),
        (&[0x7d, 5, 10, 0, 0, 1, 0, 0], "no such address family"),
        (&[0xf0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01, 0], "a descriptor over 64 bits"),
    ] {
        assert!(Determinant::read(&mut Reader::new(bytes)).is_err(), "{what}");
    }
}
