package devicetest

import (
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
)

// What a stream was given before an event that somebody waited for is known to be
// reached, and nothing else.
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
	for _, i := range []int{2, 0} { // the second tells nothing new
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
