package devicetest

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// After a wait for an event, that event and all earlier ones of its stream are known to be reached,
// and no later one.
func TestLagging(t *testing.T) {
	d := Lagging(cpu.New(nil))
	defer d.Close()
	var events []device.Event
	for range 4 {
		events = append(events, d.Compute().Record())
	}
	mark := d.Compute().Mark()
	known := func(n int) {
		t.Helper()
		for i, e := range events {
			if done, err := e.Done(); done != (i < n) || err != nil || e.Time().IsZero() == done {
				t.Errorf("event %d is reached: %v, at %v, %v; want the first %d", i, done, e.Time(), err, n)
			}
		}
	}
	known(0)
	for _, i := range []int{2, 0} { // the wait for the second event, an earlier one, changes nothing
		if err := events[i].Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		known(3)
	}
	if err := d.Compute().Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	known(4)
	if !mark.Time().IsZero() {
		t.Errorf("a mark has the time %v", mark.Time())
	}
}
