package checkpoint

import (
	"encoding/json"
	"math"
	"path/filepath"
	"testing"

	"github.com/goddp/goddp/autograd"
	"github.com/goddp/goddp/device"
	"github.com/goddp/goddp/device/cpu"
	"github.com/goddp/goddp/internal/testkit"
	"github.com/goddp/goddp/internal/testkit/commtest"
	"github.com/goddp/goddp/nn"
)

// pytorch reads the weights of a model from one file and computes with them. Then it writes its own
// weights to another file, and prints what it computes with both. It reads and writes with Hugging Face's
// library if that is installed.
const pytorch = `
import json, struct, sys
try:
    import torch
except ImportError as e:
    print(e, file=sys.stderr)
    sys.exit(77)
source, target, kind = sys.argv[1:]
dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[kind]
names = {"F32": torch.float32, "BF16": torch.bfloat16}
try:
    from safetensors.torch import load_file, save_file
except ImportError:
    def load_file(path):
        raw = open(path, "rb").read()
        n, = struct.unpack("<Q", raw[:8])
        head = json.loads(raw[8:8+n])
        out = {}
        for name, e in head.items():
            if name != "__metadata__":
                lo, hi = e["data_offsets"]
                out[name] = torch.frombuffer(bytearray(raw[8+n+lo:8+n+hi]), dtype=names[e["dtype"]]).reshape(e["shape"])
        return out
    def save_file(tensors, path):
        head, data = {}, b""
        for name, t in tensors.items():
            raw = t.contiguous().view(torch.int16 if t.dtype == torch.bfloat16 else torch.int32).numpy().tobytes()
            head[name] = {"dtype": [k for k, v in names.items() if v == t.dtype][0], "shape": list(t.shape), "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        head = json.dumps(head).encode()
        open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)
model = torch.nn.Sequential(torch.nn.Linear(7, 13), torch.nn.GELU(), torch.nn.Linear(13, 3)).to(dtype)
x = (torch.arange(35, dtype=torch.float32).reshape(5, 7) % 11 / 11)
def outputs():
    wide = {k: v.float() for k, v in model.state_dict().items()}
    y = torch.nn.functional.gelu(torch.nn.functional.linear(x, wide["0.weight"], wide["0.bias"]))
    return torch.nn.functional.linear(y, wide["2.weight"], wide["2.bias"]).flatten().tolist()
model.load_state_dict(load_file(source), strict=True)
ours = outputs()
torch.manual_seed(5)
for p in model.parameters():
    torch.nn.init.normal_(p)
save_file({k: v.detach().clone() for k, v in model.state_dict().items()}, target)
print(json.dumps({"ours": ours, "theirs": outputs()}))
`

// PyTorch computes the same outputs with weights that this package saved, and this package with
// PyTorch's.
func TestPyTorch(t *testing.T) {
	testkit.Long(t)
	commtest.OutsideJobs(t)
	dev := cpu.New(&cpu.Options{Threads: 1})
	defer dev.Close()
	var x []float32
	for i := range 35 {
		x = append(x, float32(i%11)/11)
	}
	for _, dt := range []device.DType{device.Float32, device.BFloat16} {
		dir := t.TempDir()
		source, target := filepath.Join(dir, "ours.safetensors"), filepath.Join(dir, "theirs.safetensors")
		o := nn.LinearOptions{DType: dt, Compute: device.Float32}
		net := nn.Sequential(nn.Linear(7, 13, &o), nn.GELU(), nn.Linear(13, 3, &o))
		if err := nn.Place(net, dev, 1); err != nil {
			t.Fatal(err)
		}
		outputs := func() []float32 {
			y := make([]float32, 15)
			autograd.NoGrad(dev, func() {
				copy(y, device.Elements[float32](net.Forward(autograd.FromSlice(dev, x, 5, 7)).Tensor()))
			})
			return y
		}
		if err := SaveWeights(t.Context(), source, net); err != nil {
			t.Fatal(err)
		}
		ours := outputs()
		var got struct{ Ours, Theirs []float64 }
		if err := json.Unmarshal(testkit.RunPython(t, nil, "-c", pytorch, source, target, dt.String()), &got); err != nil {
			t.Fatal(err)
		}
		if report, err := LoadWeights(target, net); err != nil || report.Complete() != nil {
			t.Fatalf("%v, %+v", err, report)
		}
		near(t, dt.String()+", saved here", got.Ours, ours)
		near(t, dt.String()+", saved by PyTorch", got.Theirs, outputs())
	}
}

// near fails unless the numbers are equal up to the order of a sum.
func near(t *testing.T, what string, want []float64, got []float32) {
	t.Helper()
	most := 0.0
	for i, w := range want {
		most = math.Max(most, math.Abs(w-float64(got[i]))/math.Max(1, math.Abs(w)))
	}
	if len(want) != len(got) || !(most < 1e-6) {
		t.Errorf("%s: outputs differ by %v", what, most)
	}
}
