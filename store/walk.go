package store

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	agboxv1 "github.com/agbox/agbox/proto/agbox/v1"
	storev1 "github.com/agbox/agbox/proto/store/v1"
)

// walk reads every record and returns those that do not decode. Buckets that
// this build does not know are read but not judged.
func walk(b *bolt.Tx) []error {
	var problems []error
	_ = b.ForEach(func(name []byte, bucket *bolt.Bucket) error { // the function returns no error
		judge := judgeOf(string(name))
		return bucket.ForEach(func(k, v []byte) error {
			if v == nil || len(problems) >= maxProblems {
				return nil
			}
			if err := judge(v); err != nil {
				problems = append(problems, &RecordError{Bucket: string(name), Key: keyText(k), Err: err})
			}
			return nil
		})
	})
	return problems
}

// judgeOf returns the test that values of the bucket must pass.
func judgeOf(bucket string) func(value []byte) error {
	kind, _, _ := strings.Cut(bucket, ":")
	switch kind + ":" {
	case prefixEvents:
		return decodes(&agboxv1.SandboxEvent{})
	case prefixExecConfig:
		return decodes(&agboxv1.CreateExecRequest{})
	case prefixExecLastEvent:
		return isNumber
	}
	switch bucket {
	case string(bucketSandboxIDs), string(bucketExecIDs), string(bucketSandboxDeleted):
		return isNumber
	case string(bucketSandboxConfig):
		return decodes(&agboxv1.CreateSpec{})
	case string(bucketEventOrder):
		return decodes(&storev1.EventRef{})
	case string(bucketEventsTrimmed):
		return decodes(&storev1.Trimmed{})
	case string(bucketMeta):
		return decodes(&storev1.Meta{})
	}
	return touch
}

func decodes(m proto.Message) func([]byte) error {
	return func(value []byte) error { return proto.Unmarshal(value, m) }
}

func isNumber(value []byte) error {
	if len(value) != 8 {
		return fmt.Errorf("%d bytes instead of 8", len(value))
	}
	return nil
}

// touch reads every byte, so that one which is not in the file is noticed.
func touch(value []byte) error {
	_ = crc32.ChecksumIEEE(value)
	return nil
}

// keyText writes a key as people know it: a number in decimal, or an id.
func keyText(key []byte) string {
	if n, ok := parseNumber(key); ok && key[0] == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%q", key)
}
