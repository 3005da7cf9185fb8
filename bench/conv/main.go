//go:build linux

// Command conv measures the convolutions of ResNet-18, ResNeXt, MobileNet and a U-Net on the CPU, and their gradients,
// beside PyTorch's.
//
//	go run ./bench/conv --threads 1
//
// It starts bench/torch_conv.py, and the two measure each shape in turn, in float32. It prints a table with the least
// times of goddp in milliseconds, and their ratios to PyTorch's. The first layer of a network needs no gradient of its
// images, so that time is left out. With one thread, the times are processor times, otherwise wall times.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/kernels"
)

var (
	threads = flag.Int("threads", 1, "number of threads of both")
	rounds  = flag.Int("rounds", 3, "number of measurements of each shape, in turn")
	last    = flag.Bool("channels-last", false, "images are [n h w c]")
	batches = flag.String("batches", "1 8 64", "sizes of a batch")
	python  = flag.String("python", "/usr/bin/python3", "a Python with PyTorch")
)

// layer is a convolution of square images.
type layer struct {
	Name     string `json:"name"`
	C        int    `json:"c"`
	Size     int    `json:"size"`
	O        int    `json:"o"`
	Kernel   int    `json:"kernel"`
	Stride   int    `json:"stride"`
	Padding  int    `json:"padding"`
	Dilation int    `json:"dilation"`
	Groups   int    `json:"groups"`
}

// first reports whether z is a network's first layer, which needs no gradient of its images.
func (z *layer) first() bool { return z.C == 3 }

var layers = []layer{
	{"ResNet, first", 3, 224, 64, 7, 2, 3, 1, 1},
	{"ResNet, 3×3", 64, 56, 64, 3, 1, 1, 1, 1},
	{"ResNet, 3×3, stride 2", 64, 56, 128, 3, 2, 1, 1, 1},
	{"ResNet, 1×1, stride 2", 64, 56, 128, 1, 2, 0, 1, 1},
	{"ResNet, 3×3", 128, 28, 128, 3, 1, 1, 1, 1},
	{"ResNet, 3×3", 256, 14, 256, 3, 1, 1, 1, 1},
	{"ResNet, 3×3, stride 2", 256, 14, 512, 3, 2, 1, 1, 1},
	{"ResNet, 3×3", 512, 7, 512, 3, 1, 1, 1, 1},
	{"bottleneck, 1×1", 256, 14, 1024, 1, 1, 0, 1, 1},
	{"32 groups", 128, 28, 128, 3, 1, 1, 1, 32},
	{"depthwise", 96, 56, 96, 3, 1, 1, 1, 96},
	{"depthwise, stride 2", 96, 56, 96, 3, 2, 1, 1, 96},
	{"dilation 2", 64, 28, 64, 3, 1, 2, 2, 1},
	{"U-Net, first", 3, 128, 32, 3, 1, 1, 1, 1},
	{"U-Net, 3×3", 64, 64, 64, 3, 1, 1, 1, 1},
	{"U-Net, 3×3, decoder", 256, 32, 128, 3, 1, 1, 1, 1},
	{"U-Net, last, 1×1", 32, 128, 2, 1, 1, 0, 1, 1},
}

// shape is a layer applied to a batch.
type shape struct {
	layer
	N    int  `json:"n"`
	Last bool `json:"last"`
}

// times are milliseconds of a convolution, of the gradient of its images and of that of its weight.
type times [3]float64

// keep keeps the least time of operation i.
func (t *times) keep(i int, ms float64) {
	if t[i] == 0 || ms < t[i] {
		t[i] = ms
	}
}

// atLeast is how long a measurement lasts at least. Its time is the mean of the calls, because a virtual machine that has to
// wait for its processor counts too little time for some of them.
const atLeast = 50 * time.Millisecond

// now returns the time, or with one thread the processor time of this process, because others may use the machine.
func now() time.Duration {
	clock := int32(unix.CLOCK_MONOTONIC)
	if *threads == 1 {
		clock = unix.CLOCK_PROCESS_CPUTIME_ID
	}
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		panic(err) // the clocks exist
	}
	return time.Duration(t.Nano())
}

// measure measures a shape, and keeps the least times.
func measure(dev device.Device, z shape, t *times) (err error) {
	k, s := kernels.Of(dev), dev.Compute()
	twice := func(n int) [2]int { return [2]int{n, n} }
	p := kernels.Conv{Stride: twice(z.Stride), Padding: twice(z.Padding), Dilation: twice(z.Dilation), Groups: z.Groups, ChannelsLast: z.Last}
	put := func(shape ...int) device.Tensor {
		b, e := dev.Alloc(device.Shape(shape).Len() * 4)
		if err = errors.Join(err, e); err != nil {
			return device.Tensor{}
		}
		x := device.NewTensor(b, device.Float32, shape...)
		for i := range device.Elements[float32](x) {
			device.Elements[float32](x)[i] = rand.Float32() - 0.5
		}
		return x
	}
	images, weight := device.Shape{z.N, z.C, z.Size, z.Size}, device.Shape{z.O, z.C / z.Groups, z.Kernel, z.Kernel}
	if z.Last {
		images, weight = device.Shape{z.N, z.Size, z.Size, z.C}, device.Shape{z.O, z.Kernel, z.Kernel, z.C / z.Groups}
	}
	out := p.Shape(images, weight)
	x, w, y, g, dx, dw := put(images...), put(weight...), put(out...), put(out...), put(images...), put(weight...)
	defer func() {
		for _, b := range []device.Tensor{x, w, y, g, dx, dw} {
			dev.Free(b.Buf)
		}
	}()
	if err != nil {
		return err
	}
	for i, f := range []func() error{
		func() error { return k.Conv2d(s, y, x, w, device.Tensor{}, p) },
		func() error { return k.Conv2dGradInput(s, dx, device.Store, g, w, p) },
		func() error { return k.Conv2dGradWeight(s, dw, device.Store, g, x, p) },
	} {
		if i == 1 && z.first() {
			continue
		}
		err = errors.Join(err, f())
		calls, begin, took := 0, now(), time.Duration(0)
		for ; took < atLeast; took = now() - begin {
			err = errors.Join(err, f())
			calls++
		}
		t.keep(i, took.Seconds()*1e3/float64(calls))
	}
	return err
}

// peer is a process of bench/torch_conv.py.
type peer struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startPeer() (*peer, error) {
	p := &peer{cmd: exec.Command(*python, "bench/torch_conv.py", strconv.Itoa(*threads), strconv.FormatFloat(atLeast.Seconds(), 'g', -1, 64))}
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// measure is the function measure in PyTorch.
func (p *peer) measure(z shape, t *times) error {
	if err := json.NewEncoder(p.in).Encode(z); err != nil {
		return err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("torch_conv.py ended: %w", err)
	}
	var least times
	err = json.Unmarshal(line, &least)
	for i, ms := range least {
		t.keep(i, ms)
	}
	return err
}

func run() error {
	dev := cpu.New(&cpu.Options{Threads: *threads})
	defer dev.Close()
	torch, err := startPeer()
	if err != nil {
		return err
	}
	defer torch.cmd.Wait()
	defer torch.in.Close()
	fmt.Println("| convolution | images | channels | batch | forward | ratio | gradient of images | ratio | of the weight | ratio |")
	fmt.Println("|---|---|---|---|---|---|---|---|---|---|")
	for _, l := range layers {
		for _, batch := range strings.Fields(*batches) {
			n, err := strconv.Atoi(batch)
			if err != nil {
				return err
			}
			z := shape{l, n, *last}
			var ours, theirs times
			for range *rounds {
				if err := errors.Join(measure(dev, z, &ours), torch.measure(z, &theirs)); err != nil {
					return err
				}
			}
			fmt.Printf("| %s | %d² | %d to %d | %d |", z.Name, z.Size, z.C, z.O, z.N)
			for i, t := range ours {
				if i == 1 && z.first() {
					fmt.Print(" | |")
					continue
				}
				fmt.Printf(" %.2f | %.2f |", t, t/theirs[i])
			}
			fmt.Println()
		}
	}
	return nil
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
