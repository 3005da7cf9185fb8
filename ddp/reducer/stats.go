package reducer

// Stats describes the passes and the buckets of a model on this rank.
type Stats struct {
	Passes      int // the number of passes that reduced, shadow passes included
	Skipped     int // the number of passes in Passes whose gradients must not be used
	Shadowed    int // the number of passes in Passes that were shadow passes on this rank
	Accumulated int // the number of passes that only accumulated

	Buckets []Bucket // the buckets in use, in the order in which they are reduced
	Held    int64    // the bytes of the memory of buckets, which buckets may share
	Rebuilt []string // the names of the parameters in the order in which rank 0's gradients became final; nil if the buckets were not rebuilt
	Ready   []string // the names of the parameters in the order in which their gradients became final in the last pass
	Unused  []string // the names of the parameters that the last pass did not use; nil if unused parameters are not allowed
}

// Bucket describes one bucket.
type Bucket struct {
	Params []string // the names of the bucket's parameters
	Bytes  int      // the size of the gradients in bytes
	Cap    int      // the cap in bytes: the bucket took no more parameters once Bytes had reached Cap
	Padded int      // the size of the bucket in bytes, with padding
}
