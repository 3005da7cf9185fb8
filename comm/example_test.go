package comm_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/goddp/goddp/comm"
	"github.com/goddp/goddp/device"
)

// Each of two ranks contributes its number plus one to a sum. Here the ranks are goroutines.
// Under golaunch each rank is a process that calls [comm.Init].
func ExampleLocal() {
	groups, err := comm.Local(2, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	sum := func(pg *comm.ProcessGroup) (float32, error) {
		defer pg.Close()
		buf, err := pg.Alloc(4)
		if err != nil {
			return 0, err
		}
		t := device.NewTensor(buf, device.Float32, 1)
		device.Elements[float32](t)[0] = float32(pg.Rank() + 1)
		err = pg.AllReduce(t, comm.Sum).Wait(context.Background())
		return device.Elements[float32](t)[0], err
	}
	var ranks sync.WaitGroup
	sums := make([]string, len(groups))
	for rank, pg := range groups {
		ranks.Go(func() {
			x, err := sum(pg)
			sums[rank] = fmt.Sprintln("rank", rank, "has", x, err)
		})
	}
	ranks.Wait()
	fmt.Print(sums[0], sums[1])
	// Output:
	// rank 0 has 3 <nil>
	// rank 1 has 3 <nil>
}
