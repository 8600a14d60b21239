typedef int sl_placeholder_attn_ref;
