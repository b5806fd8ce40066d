#!/bin/sh
# Makes one report of one day from the orders file; `report.run` calls it, and so can a person:
#
#     REPORT_NAME=sales-by-customer REPORT_DAY=2026-11-03 ./report.sh orders.csv 5
#
# Prints a head line with the day's number of orders and their sum, then at most LINES lines.
# Exits 65 when the report or the file's content is wrong, which no retry mends, and 75 when the file is not there (yet).
set -eu

orders=${1:?usage: report.sh ORDERS.CSV [LINES]}
lines=${2:-10}
report=${REPORT_NAME:?REPORT_NAME names the report}
day=${REPORT_DAY:?REPORT_DAY is a day such as 2026-11-03}

case $report in
daily-total | sales-by-customer | unpaid-by-customer | largest-orders) ;;
*) echo "unknown report: $report" >&2 && exit 65 ;;
esac
case $lines in
'' | *[!0-9]*) echo "not a number of lines: $lines" >&2 && exit 65 ;;
esac
[ -r "$orders" ] || { echo "cannot read $orders" >&2 && exit 75; }

# Sums are kept in cents: floats would not add up to what the shop has. A row in front of the others is the head line;
# the number before the tab is what the rows are sorted by and does not leave this script.
rows=$(awk -F, -v report="$report" -v day="$day" '
    function cents(amount,   part) { split(amount, part, "."); return part[1] * 100 + part[2] }
    function money(sum) { return sprintf("%d.%02d", sum / 100, sum % 100) }
    function orders(count) { return count (count == 1 ? " order" : " orders") }
    function row(key, text) { printf "%d\t%s\n", key, text }
    NR == 1 { next }
    NF != 6 || $3 !~ /^[0-9]+\.[0-9][0-9]$/ || $4 !~ /^(paid|unpaid)$/ {
        printf "line %d is not an order: %s\n", NR, $0 > "/dev/stderr"
        wrong = 1
        exit 65
    }
    $6 != day { next }
    { count++; total += cents($3); states[$4] += cents($3); counts[$4]++ }
    report == "largest-orders" { row(cents($3), sprintf("%-8s %-16s %10s  %s", $1, $2, money(cents($3)), $4)) }
    report == "sales-by-customer" || report == "unpaid-by-customer" && $4 == "unpaid" { customer[$2] += cents($3); bought[$2]++ }
    END {
        if (wrong) exit 65
        for (name in customer) row(customer[name], sprintf("%-16s %10s  %s", name, money(customer[name]), orders(bought[name])))
        if (report == "daily-total")
            for (state in states) row(states[state], sprintf("%-16s %10s  %s", state, money(states[state]), orders(counts[state])))
        # Larger than any sum, so that it stays in front.
        row(2147483647, sprintf("%s %s: %s, %s", report, day, orders(count + 0), money(total)))
    }
' "$orders")

printf '%s\n' "$rows" | LC_ALL=C sort -k1,1nr -k2 | cut -f2- | awk -v lines="$lines" 'NR <= lines + 1'
