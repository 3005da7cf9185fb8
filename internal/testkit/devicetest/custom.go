package devicetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/goddp/goddp/device"
)

// customSource has kernels with every type of parameter, and a kernel that writes the numbers of
// its threads.
const customSource = `template <class T>
__device__ void mix(T *y, Accum acc, const T *x, const i64 *at, const i32 *w, const u8 *b,
                    i64 n, i32 i, i64 l, u64 u, float f, double d) {
	typedef typename Arith<T>::type A;
	for (i64 k = global_thread(); k < n; k += global_threads())
		accumulate(y + k, acc, A(d) * up(x[at[k]]) + A(f) * w[k] + b[k] + i + l + u);
}
template <class T> __device__ void number(T *y) {
	u64 block = (blockIdx.z * gridDim.y + blockIdx.y) * (u64)gridDim.x + blockIdx.x;
	u64 thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
	u64 i = block * blockDim.x * blockDim.y * blockDim.z + thread;
	y[i] = down<T>(i);
}
__device__ void twice(i32 *y) { y[global_thread()] *= 2; }
`

// customKernels holds the kernels of customSource.
type customKernels struct{ mix, number, twice *device.Kernel }

func newCustomKernels() customKernels {
	m := device.NewModule("custom.cu", customSource)
	return customKernels{
		mix:    m.Kernel("mix", "y[n] x[2n] at[n] w[n] b[n]", mix[float32], mix[float64]),
		number: m.Kernel("number", "y[... 8]", number[float32], number[float64]),
		twice:  m.Kernel("twice", "y[3]", func(y []int32) { y[0], y[1], y[2] = 2*y[0], 2*y[1], 2*y[2] }),
	}
}

func mix[T float32 | float64](y []T, acc device.Accum, x []T, at []int64, w []int32, b []uint8,
	n int, i int32, l int64, u uint64, f float32, d float64) {
	for k := range n {
		device.Accumulate(&y[k], acc, T(d)*x[at[k]]+T(f)*T(w[k])+T(b[k])+T(i)+T(l)+T(u))
	}
}

func number[T float32 | float64](y []T) {
	for i := range y {
		y[i] = T(i)
	}
}

func checkCustom(r *rig) {
	k := newCustomKernels()
	each(r, []int{0, 1, 7, 1000}, func(n int) {
		x := r.random(-1, 1, 2*n)
		at, w, b := newArray(n), newArray(n), newArray(n)
		want := value{newArray(n), make([]float64, n), 8}
		for i := range n {
			at.v[i], w.v[i], b.v[i] = float64((7*i+3)%(2*n)), float64(i%11-5), float64(i%200)
			want.v[i] = 0.75*x.v[int(at.v[i])] + 0.5*w.v[i] + b.v[i] - 3 + 40 + 5
			want.scale[i] = 300
		}
		put := func(dt device.DType, a array) device.Tensor { return r.place(dt, a.shape, encode(dt, a.v)).Tensor }
		tx, tat, tw, tb := r.put(x).Tensor, put(device.Int64, at), put(device.Int32, w), put(device.Uint8, b)
		r.accumulates(fmt.Sprintf("Launch for %d", n), want, func(dst device.Tensor, acc device.Accum) error {
			return r.k.Launch(r.s, k.mix, device.Flat(n), dst, acc, tx, tat, tw, tb, n, int32(-3), int64(40), uint64(5), float32(0.5), 0.75)
		})
	})
	grid := device.Grid{Blocks: [3]int{3, 2, 2}, Threads: [3]int{2, 2, 4}}
	numbers := value{array: newArray(3, 8, 8)}
	for i := range numbers.v {
		numbers.v[i] = float64(i)
	}
	r.result("Launch over a grid", numbers, func(dst device.Tensor) error { return r.k.Launch(r.s, k.number, grid, dst) })
	kept := r.put(array{device.Shape{0, 8}, nil})
	r.ok("Launch of nothing", r.k.Launch(r.s, k.number, device.Flat(0), kept.Tensor))
	y := r.place(device.Int32, device.Shape{3}, encode(device.Int32, []float64{1, -2, 3}))
	r.ok("Launch without a float", r.k.Launch(r.s, k.twice, device.Grid{Blocks: [3]int{1}, Threads: [3]int{3}}, y.Tensor))
	r.same("Launch without a float", y, value{array: array{y.Shape, []float64{2, -4, 6}}})
	r.customMisfits(k)
	r.customDoesNotCompile()
}

// customMisfits checks that grids and arguments that do not fit panic with both values that
// disagree.
func (r *rig) customMisfits(k customKernels) {
	t := func(shape ...int) device.Tensor { return r.put(newArray(shape...)).Tensor }
	of := func(dt device.DType, shape ...int) device.Tensor {
		return r.place(dt, shape, make([]byte, device.Shape(shape).Len()*dt.Size())).Tensor
	}
	at, w, b, flat := of(device.Int64, 4), of(device.Int32, 4), of(device.Uint8, 4), device.Flat(4)
	launch := func(y, x device.Tensor, n any, last ...any) func() error {
		args := append([]any{y, device.Store, x, at, w, b, n, int32(1), int64(1), uint64(1), float32(1)}, last...)
		return func() error { return r.k.Launch(r.s, k.mix, flat, args...) }
	}
	other := device.Float64
	if r.dt == other {
		other = device.Float32
	}
	launchOver := func(blocks, threads [3]int) func() error {
		return func() error { return r.k.Launch(r.s, k.number, device.Grid{Blocks: blocks, Threads: threads}, t(8)) }
	}
	for text, call := range map[string]func() error{
		"kernel mix: x is [9], want [2n] with n = 4":                                 launch(t(4), t(9), 4, 1.),
		"kernel mix: x is [4 2], want [2n] with n = 4":                               launch(t(4), t(4, 2), 4, 1.),
		"kernel mix: at is [4], want [n] with n = 5":                                 launch(t(5), t(10), 5, 1.),
		"kernel mix: argument 6 is int64, want int":                                  launch(t(4), t(8), int64(4), 1.),
		"kernel mix: argument 6 is device.Tensor, want int":                          launch(t(4), t(8), t(4), 1.),
		"kernel mix: the number of arguments is 11, want 12":                         launch(t(4), t(8), 4),
		fmt.Sprintf("kernel mix: x is %v[8], want a tensor of %v", other, r.dt):      launch(t(4), of(other, 8), 4, 1.),
		"kernel mix: y is int32[4], want a tensor of a floating-point type":          launch(w, t(8), 4, 1.),
		"kernel number: y is int, want a tensor":                                     func() error { return r.k.Launch(r.s, k.number, flat, 3) },
		"kernel number: y is [7], want [... 8] with ... = []":                        func() error { return r.k.Launch(r.s, k.number, flat, t(7)) },
		"kernel twice: y is [4], want [3]":                                           func() error { return r.k.Launch(r.s, k.twice, flat, w) },
		"kernel number: the number of blocks along y is 65536, want at most 65535":   launchOver([3]int{1, 1 << 16}, [3]int{8}),
		"kernel number: the number of blocks along x is -1, want at most 2147483647": launchOver([3]int{-1}, [3]int{8}),
		"kernel number: the number of threads along x is 0, want 1 to 1024":          launchOver([3]int{1}, [3]int{}),
		"kernel number: the number of threads along z is 65, want 1 to 64":           launchOver([3]int{1}, [3]int{1, 1, 65}),
		"kernel number: the number of threads of a block is 2048, want at most 1024": launchOver([3]int{1}, [3]int{64, 32}),
	} {
		misfit[*device.LaunchError](r, text, call)
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); got != text {
					r.fail("Launch panics with %q, want %q", got, text)
				}
			}()
			call()
		}()
	}
}

// customDoesNotCompile checks that, on a device that compiles kernels, the error names the wrong
// line of the program's source.
func (r *rig) customDoesNotCompile() {
	m := device.NewModule("broken.cu", "template <class T> __device__ void broken(T *y) {\n\n\ty[0] = down<T>(undefined_name);\n}\n")
	broken := m.Kernel("broken", "y[1]", func(y []float32) {}, func(y []float64) {})
	y := r.put(newArray(1))
	for range 2 { // the second launch returns the stored error
		err := r.k.Launch(r.s, broken, device.Flat(1), y.Tensor)
		var failed *device.CompileError
		if err == nil {
			continue
		}
		text := strings.NewReplacer("(", ":", ")", ":").Replace(err.Error())
		if !errors.As(err, &failed) || !strings.Contains(text, "broken.cu:3:") || !strings.Contains(text, "undefined_name") || strings.Contains(text, "\n") {
			r.fail("Launch of a kernel that does not compile: %v, want a line about broken.cu(3) and undefined_name", err)
		}
	}
}
