/* The record-batch codec's inner loops: records <-> Arrow buffers, without an object per record.
 *
 * Optional: called through native.py where it was built; column_decoder.py, column_encoder.py, record_sections.py,
 * record_check.py and columns.py do the same in Python; the tests hold both against one reference. Layouts
 * are those of batch.py (KIP-98) and of Arrow's binary and list arrays. The connector's Avro is here, too, and has a file
 * of its own. No global state; the GIL is released in every loop.
 *
 * Whatever is read from batches is checked before it is followed, whatever is written is checked against the
 * buffer it goes to. Malformed batches raise ValueError; arguments that do not fit each other SystemError.
 */
#include "_kernel.h"

static PyMethodDef methods[] = {
    {"scan", scan, METH_VARARGS, NULL},
    {"check_records", check_records, METH_VARARGS, NULL},
    {"count_headers", count_headers, METH_VARARGS, NULL},
    {"decode", decode, METH_VARARGS, NULL},
    {"decode_avro", decode_avro, METH_VARARGS, NULL},
    {"decode_json", decode_json, METH_VARARGS, NULL},
    {"encode", encode, METH_VARARGS, NULL},
    {"json_objects", json_objects, METH_VARARGS, NULL},
    {"partitions", partitions, METH_VARARGS, NULL},
    {"protobuf_decode", protobuf_decode, METH_VARARGS, NULL},
    {"protobuf_encode", protobuf_encode, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};

#ifdef CRC_BY_CPU
static PyMethodDef checksum_methods[] = {
    {"decode_plain", decode_plain, METH_VARARGS, NULL},
    {"first_bad_crc", first_bad_crc, METH_VARARGS, NULL},
    {"plain_rows", plain_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL}};
#endif

/* These are there only where the processor has the instruction for checksums; so is encode's `framed`. */
static int execute(PyObject *module)
{
    if (PyModule_AddIntConstant(module, "VERSION", KERNEL_VERSION) < 0)
        return -1;
#ifdef CRC_BY_CPU
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2"))
        return PyModule_AddFunctions(module, checksum_methods);
#endif
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "broker.records._kernel", "Loops of the record-batch codec; see _kernel.c.", 0, methods, slots,
    NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__kernel(void)
{
    return PyModuleDef_Init(&definition);
}
