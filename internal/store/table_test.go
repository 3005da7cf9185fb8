package store

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestTable runs the scenarios of testdata/table. Each starts with an empty table of at
// most 4 keys, 20 bytes a value and 590 bytes in all. The output of a command ends with
// the waits that it ended.
func TestTable(t *testing.T) {
	datadriven.RunTest(t, "testdata/table", runTable())
}

func runTable() func(t *testing.T, d *datadriven.TestData) string {
	var (
		table   *table
		waiters map[string]*waiter
	)
	return func(t *testing.T, d *datadriven.TestData) string {
		var args []string
		for _, a := range d.CmdArgs {
			args = append(args, a.Key)
		}
		arg := func(i int) string {
			if i < len(args) && args[i] != "-" { // "-" is the empty value
				return args[i]
			}
			return ""
		}
		var out strings.Builder
		report := func(result any, err error) {
			if err != nil {
				result = "error: " + err.Error()
			}
			fmt.Fprintln(&out, result)
		}
		switch d.Cmd {
		case "new":
			table = newTable(Limits{Keys: 4, ValueBytes: 20, TableBytes: 590}.withDefaults())
			waiters = make(map[string]*waiter)
			report("ok", nil)
		case "set":
			report("ok", table.set(args[0], []byte(arg(1)), table.limits.TableBytes))
		case "append":
			report("ok", table.append(args[0], []byte(arg(1)), table.limits.TableBytes))
		case "setall":
			values := make([][]byte, len(args))
			report("ok", table.setAll(args, values, table.limits.TableBytes))
		case "add":
			delta, _ := strconv.ParseInt(arg(1), 10, 64)
			report(table.add(args[0], delta, table.limits.TableBytes))
		case "cas":
			v, err := table.compareAndSet(args[0], []byte(arg(1)), []byte(arg(2)), table.limits.TableBytes)
			report(string(v), err)
		case "delete":
			report(table.delete(args[0]), nil)
		case "get":
			values, all := table.get(args...)
			report(fmt.Sprintf("%q all=%v", values, all), nil)
		case "wait":
			waiters[args[0]] = table.wait(args[1:])
			report("ok", nil)
		case "cancel":
			table.cancel(waiters[args[0]])
			report("ok", nil)
		case "close":
			table.close()
			report("ok", nil)
		case "state":
			report(fmt.Sprintf("keys=%d bytes=%d parked under %q", table.len(), table.bytes,
				slices.Sorted(maps.Keys(table.parked))), nil)
		default:
			d.Fatalf(t, "unknown command %q", d.Cmd)
		}
		for _, name := range slices.Sorted(maps.Keys(waiters)) {
			select {
			case <-waiters[name].done:
				fmt.Fprintf(&out, "%s ends, met=%v\n", name, waiters[name].met)
				delete(waiters, name)
			default:
			}
		}
		return out.String()
	}
}
