//! The check of images makes checksums right.

use radic_fuzz::image;

#[test]
fn checksums_are_made_right() {
    let (_, mut input) = image::first().swap_remove(5);
    // The newest image's id, its first run's checksum, the end record of the last image.
    let (len, end) = (input.len(), 5 + 144 + image::metadata(8).len());
    for at in [5 + 56, end + 24, len - 5] {
        input[at] ^= 8;
        assert!(image::check(&input), "byte {at}");
    }
    input[0] = image::LEAVE_CHECKSUMS;
    assert!(!image::check(&input));
}
