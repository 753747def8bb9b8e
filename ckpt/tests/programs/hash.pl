# A hash of strings that grow, closures, regular expressions, a file written line by line.
use strict;
use warnings;

$| = 1;
print "ready\n";
open(my $log, '>', 'log') or die "log: $!";
my ($sum, %seen) = (1);
my $next = sub { $sum = ($sum * 31 + $_[0]) % 1000003 };
for my $i (1 .. 10_000_000) {
    $next->($i);
    $seen{$sum % 1000} .= chr(97 + $i % 26);
    print $log "$i $sum ", ($seen{$sum % 1000} =~ /(ab?c?)/ ? $1 : '-'), "\n" if $i % 4000 == 0;
}
close($log) or die "log: $!";
print $sum, ' ', scalar(keys %seen), ' ', length(join '', values %seen), "\n";
exit 3;
