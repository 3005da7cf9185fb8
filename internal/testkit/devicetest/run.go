package devicetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/internal/kernels"
)

// Case is a named check of the suite.
type Case struct {
	Name string
	// Check returns an error that says how d fails, or nil. It leaves nothing allocated.
	Check func(ctx context.Context, d device.Device) error
	// CheckQuickly is Check with fewer Accums, and without the largest operands of kernels that are alike.
	CheckQuickly func(ctx context.Context, d device.Device) error
}

// Run runs each case of the suite as a subtest, on a device that open makes and Run closes. Kernels
// are checked in Float32 and Float64, and in the 16-bit types of half; Axpby, SGD, AdamW,
// RMSProp, PowerSum and ScaleToNorm always in all four types.
func Run(t *testing.T, open func(t *testing.T) device.Device, half ...device.DType) {
	for _, c := range Cases(half...) {
		t.Run(c.Name, func(t *testing.T) {
			d := open(t)
			if err := c.Check(t.Context(), d); err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Errorf("Close: %v", err)
			}
		})
	}
}

// Cases returns the cases: those of the device, and those of its kernels in each type.
func Cases(half ...device.DType) []Case {
	cases := []Case{
		check("Memory", device.Float32, checkMemory),
		check("MemoryConcurrent", device.Float32, checkMemoryConcurrent),
		check("MemoryMisuse", device.Float32, checkMemoryMisuse),
		check("Streams", device.Float32, checkStreams),
		check("HostCopies", device.Float32, checkHostCopies),
		check("Copies", device.Float32, checkCopies),
		check("Values", device.Float32, checkValues),
		check("Fill", device.Float32, checkFill),
		check("Copy", device.Float32, checkCopy),
		check("NaNCopy", device.Float32, checkNaNCopy),
		check("MaskedCopy", device.Float32, checkMaskedCopy),
		check("CopyStrided", device.Float32, checkCopyStrided),
		check("NonFinite", device.Float32, checkNonFinite),
		check("Hash", device.Float32, checkHash),
		check("Quantize", device.Float32, checkQuantize),
		check("Dequantize", device.Float32, checkDequantize),
		check("Misfits", device.Float32, checkMisfits),
		check("AttentionMisfits", device.Float32, checkAttentionMisfits),
	}
	for _, dt := range []device.DType{device.Float32, device.Float64, device.Float16, device.BFloat16} {
		for _, c := range []struct {
			name string
			run  func(*rig)
		}{{"Axpby", checkAxpby}, {"SGD", checkSGD}, {"AdamW", checkAdamW}, {"RMSProp", checkRMSProp}, {"NaNUpdates", checkNaNUpdates},
			{"PowerSum", checkPowerSum}, {"ScaleToNorm", checkScaleToNorm}} {
			cases = append(cases, check(c.name+"/"+dt.String(), dt, c.run))
		}
	}
	for _, dt := range []device.DType{device.Float32, device.Float64} {
		cases = append(cases, check("Uniform/"+dt.String(), dt, checkUniform), check("Normal/"+dt.String(), dt, checkNormal),
			check("Orthonormalize/"+dt.String(), dt, checkOrthonormalize), check("MergedMoments/"+dt.String(), dt, checkMergedMoments))
	}
	for _, dt := range append([]device.DType{device.Float32, device.Float64}, half...) {
		for _, c := range []struct {
			name string
			run  func(*rig)
		}{
			{"Unary", checkUnary}, {"UnaryGrad", checkUnaryGrad}, {"ScaleBy", checkScaleBy}, {"SwiGLU", checkSwiGLU}, {"NaN", checkNaN},
			{"Binary", checkBinary}, {"Sum", checkSum}, {"MatMul", checkMatMul}, {"BatchedMatMul", checkBatchedMatMul}, {"Linear", checkLinear}, {"Linears", checkLinears}, {"LinearGrad", checkLinearGrad},
			{"LinearUnary", checkLinearUnary}, {"LinearUnaryGrad", checkLinearUnaryGrad},
			{"Dropout", checkDropout}, {"Softmax", checkSoftmax}, {"SoftmaxGrad", checkSoftmaxGrad},
			{"Norm", checkNorm}, {"BatchNormReLU", checkBatchNormReLU}, {"NormNaN", checkNormNaN},
			{"Conv2d", checkConv2d}, {"ConvNaN", checkConvNaN}, {"MaxPool2d", checkMaxPool}, {"AvgPool2d", checkAvgPool},
			{"MSE", checkMSE}, {"MSEGrad", checkMSEGrad},
			{"AccumulateStrided", checkAccumulateStrided}, {"Compare", checkCompare}, {"FindExtreme", checkFindExtreme}, {"Gather", checkGather}, {"ScatterAdd", checkScatterAdd}, {"SelectLabels", checkSelectLabels},
			{"CrossEntropy", checkCrossEntropy}, {"CrossEntropyGrad", checkCrossEntropyGrad}, {"CrossEntropyInPlace", checkCrossEntropyInPlace},
			{"Custom", checkCustom},
			{"Attention", checkAttention}, {"NaNAttention", checkNaNAttention}, {"Rotate", checkRotate}, {"WriteRows", checkWriteRows}, {"AttendLast", checkAttendLast},
		} {
			cases = append(cases, check(c.name+"/"+dt.String(), dt, c.run))
		}
	}
	return cases
}

// check makes a case of a function that fails through its rig.
func check(name string, dt device.DType, run func(*rig)) Case {
	checks := func(ctx context.Context, d device.Device, quick bool) (err error) {
		r := &rig{
			ctx: ctx, dev: d, k: kernels.Of(d), s: d.Compute(), quick: quick,
			dt: dt, rnd: rand.New(rand.NewPCG(1, uint64(dt))),
		}
		held := d.Memory().InUse
		defer func() {
			switch p := recover().(type) {
			case nil:
				if now := d.Memory().InUse; now != held {
					err = fmt.Errorf("%s: %d bytes in use after the check, %d before", name, now, held)
				}
			case failure:
				err = fmt.Errorf("%s: %w", name, p.error)
			default:
				panic(p)
			}
		}()
		defer r.clean()
		run(r)
		return nil
	}
	return Case{
		name,
		func(ctx context.Context, d device.Device) error { return checks(ctx, d, false) },
		func(ctx context.Context, d device.Device) error { return checks(ctx, d, true) },
	}
}
