package coordinator

import (
	"fmt"
	"syscall"
	"testing"
	"time"
)

// BenchmarkDeath measures how long it takes until the last of many ranks hears that one
// died, and until all hear that all have, over TCP within one process.
func BenchmarkDeath(b *testing.B) {
	for _, size := range []int{100, 1000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			var told, settled, spent time.Duration
			for range b.N {
				j := open(b, "tcp", size, nil)
				j.join(b)
				before := processorTime()
				begun := time.Now()
				j.clients[size/2].Close()
				for r, c := range j.clients {
					if r != size/2 {
						await(b, c.Root())
					}
				}
				told += time.Since(begun)
				for r, c := range j.clients {
					if r != size/2 {
						<-c.Root().Settled()
					}
				}
				settled += time.Since(begun)
				spent += processorTime() - before
				for _, c := range j.clients {
					c.Close()
				}
				j.Close()
			}
			b.ReportMetric(float64(told.Microseconds())/1e3/float64(b.N), "ms/told")
			b.ReportMetric(float64(settled.Microseconds())/1e3/float64(b.N), "ms/settled")
			b.ReportMetric(float64(spent.Microseconds())/1e3/float64(b.N), "cpu-ms")
		})
	}
}

func processorTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
