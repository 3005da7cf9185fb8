//go:build linux

// Command conv measures the convolutions of ResNet-18, ResNeXt, MobileNet and a U-Net on the CPU, and their gradients,
// beside PyTorch's.
//
//	go run ./bench/conv --threads 1
//
// It starts bench/torch_conv.py, and the two measure each shape in turn, in float32. It prints a table with the least
// times of goddp in milliseconds, and their ratios to PyTorch's. With one thread, times are of the processor.
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

// shape is a convolution of square images.
type shape struct {
	Name     string `json:"name"`
	N        int    `json:"n"`
	C        int    `json:"c"`
	Size     int    `json:"size"`
	O        int    `json:"o"`
	Kernel   int    `json:"kernel"`
	Stride   int    `json:"stride"`
	Padding  int    `json:"padding"`
	Dilation int    `json:"dilation"`
	Groups   int    `json:"groups"`
	Last     bool   `json:"last"`
}

var shapes = []shape{
	{"ResNet, first", 0, 3, 224, 64, 7, 2, 3, 1, 1, false},
	{"ResNet, 3×3", 0, 64, 56, 64, 3, 1, 1, 1, 1, false},
	{"ResNet, 3×3, stride 2", 0, 64, 56, 128, 3, 2, 1, 1, 1, false},
	{"ResNet, 1×1, stride 2", 0, 64, 56, 128, 1, 2, 0, 1, 1, false},
	{"ResNet, 3×3", 0, 128, 28, 128, 3, 1, 1, 1, 1, false},
	{"ResNet, 3×3", 0, 256, 14, 256, 3, 1, 1, 1, 1, false},
	{"ResNet, 3×3, stride 2", 0, 256, 14, 512, 3, 2, 1, 1, 1, false},
	{"ResNet, 3×3", 0, 512, 7, 512, 3, 1, 1, 1, 1, false},
	{"bottleneck, 1×1", 0, 256, 14, 1024, 1, 1, 0, 1, 1, false},
	{"32 groups", 0, 128, 28, 128, 3, 1, 1, 1, 32, false},
	{"depthwise", 0, 96, 56, 96, 3, 1, 1, 1, 96, false},
	{"depthwise, stride 2", 0, 96, 56, 96, 3, 2, 1, 1, 96, false},
	{"dilation 2", 0, 64, 28, 64, 3, 1, 2, 2, 1, false},
	{"U-Net, first", 0, 3, 128, 32, 3, 1, 1, 1, 1, false},
	{"U-Net, 3×3", 0, 64, 64, 64, 3, 1, 1, 1, 1, false},
	{"U-Net, 3×3, decoder", 0, 256, 32, 128, 3, 1, 1, 1, 1, false},
	{"U-Net, last, 1×1", 0, 32, 128, 2, 1, 1, 0, 1, 1, false},
}

// times are milliseconds of a convolution, of the gradient of its images and of that of its weight.
type times [3]float64

func (t *times) keepLeast(u times) {
	for i, v := range u {
		if t[i] == 0 || v < t[i] {
			t[i] = v
		}
	}
}

// atLeast is how long a measurement of a kernel lasts, if it is not one call.
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

func measure(dev device.Device, z shape) (t times, err error) {
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
	x, w := put(z.N, z.C, z.Size, z.Size), put(z.O, z.C/z.Groups, z.Kernel, z.Kernel)
	if z.Last {
		x, w = x.Reshape(z.N, z.Size, z.Size, z.C), w.Reshape(z.O, z.Kernel, z.Kernel, z.C/z.Groups)
	}
	if err != nil {
		return t, err
	}
	out := p.Shape(x.Shape, w.Shape)
	y, g, dx, dw := put(out...), put(out...), put(x.Shape...), put(w.Shape...)
	defer func() {
		for _, b := range []device.Tensor{x, w, y, g, dx, dw} {
			dev.Free(b.Buf)
		}
	}()
	for i, f := range []func() error{
		func() error { return k.Conv2d(s, y, x, w, device.Tensor{}, p) },
		func() error { return k.Conv2dGradInput(s, dx, device.Store, g, w, p) },
		func() error { return k.Conv2dGradWeight(s, dw, device.Store, g, x, p) },
	} {
		err = errors.Join(err, f())
		for begin := now(); ; {
			start := now()
			err = errors.Join(err, f())
			end := now()
			if ms := (end - start).Seconds() * 1e3; t[i] == 0 || ms < t[i] {
				t[i] = ms
			}
			if end-begin > atLeast {
				break
			}
		}
	}
	return t, err
}

// peer is PyTorch in a process of its own.
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

func (p *peer) measure(z shape) (t times, err error) {
	if err = json.NewEncoder(p.in).Encode(z); err != nil {
		return t, err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return t, fmt.Errorf("torch_conv.py ended: %w", err)
	}
	return t, json.Unmarshal(line, &t)
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
	for _, z := range shapes {
		for _, batch := range strings.Fields(*batches) {
			if z.N, err = strconv.Atoi(batch); err != nil {
				return err
			}
			z.Last = *last
			var ours, theirs times
			for range *rounds {
				mine, err := measure(dev, z)
				if err != nil {
					return err
				}
				his, err := torch.measure(z)
				if err != nil {
					return err
				}
				ours.keepLeast(mine)
				theirs.keepLeast(his)
			}
			fmt.Printf("| %s | %d² | %d to %d | %d |", z.Name, z.Size, z.C, z.O, z.N)
			for i, t := range ours {
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
