typedef int sl_placeholder_kv;
