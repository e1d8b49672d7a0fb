package store

import (
	"fmt"
	"hash/crc32"
	"strconv"
	"strings"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"
)

// walk reads every record and returns an error for each that does not decode, up
// to maxProblems. It reads the values in unknown buckets without decoding them.
func walk(b *bolt.Tx) []error {
	var problems []error
	_ = b.ForEach(func(name []byte, bucket *bolt.Bucket) error { // the function returns no error
		verify := verifierOf(string(name))
		return bucket.ForEach(func(k, v []byte) error {
			if v == nil || len(problems) >= maxProblems {
				return nil
			}
			if err := verify(v); err != nil {
				problems = append(problems, &RecordError{Bucket: string(name), Key: keyText(k), Err: err})
			}
			return nil
		})
	})
	return problems
}

// verifierOf returns the check for values of the bucket.
func verifierOf(bucket string) func(value []byte) error {
	kind, _, many := strings.Cut(bucket, ":")
	if many {
		kind += ":"
	}
	message, known := valuesOf[kind]
	switch {
	case !known:
		return readBytes
	case message == nil:
		return isNumber
	}
	return decodes(message.ProtoReflect().New().Interface())
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

// readBytes reads every byte, so that a value beyond the end of the file causes a
// memory fault.
func readBytes(value []byte) error {
	_ = crc32.ChecksumIEEE(value)
	return nil
}

// keyText formats a key for people: a number in decimal, or a quoted id.
func keyText(key []byte) string {
	if n, ok := parseNumber(key); ok && key[0] == 0 {
		return strconv.FormatUint(n, 10)
	}
	return fmt.Sprintf("%q", key)
}
