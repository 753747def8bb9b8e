# From OpenMetrics to the older text format, the only one that promtool lints: there a counter and an information have their suffix in their family's name, too.
/^# (UNIT|EOF)/ { next }
/^# HELP/ { help = $0; next }
/^# TYPE/ {
    suffix = $4 == "counter" ? "_total" : $4 == "info" ? "_info" : ""
    name = $3 suffix
    sub("^# HELP " $3 " ", "# HELP " name " ", help)
    print help
    print "# TYPE", name, $4 == "info" ? "gauge" : $4
    next
}
{ print }
