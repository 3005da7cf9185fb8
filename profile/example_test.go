package profile_test

import (
	"fmt"
	"time"

	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/profile"
)

// A reduction of 4 ms, 3 ms of which overlap the backward pass.
func ExampleRecorder_Overlap() {
	dev := cpu.New(nil)
	defer dev.Close()
	trace := profile.Of(dev)
	trace.Start()
	at := func(ms int) profile.Moment { return profile.At(time.UnixMilli(int64(ms))) }
	trace.Add(profile.Span{Track: profile.Compute, Name: "backward", Begin: at(0), End: at(10)})
	trace.Add(profile.Span{Track: profile.Communication, Name: "bucket 0", Begin: at(7), End: at(11)})
	overlap := trace.Overlap()
	fmt.Println(overlap.Hidden, "of", overlap.Comm, "are hidden")
	// Output: 3ms of 4ms are hidden
}
